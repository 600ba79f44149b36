"""The tracer makes nodes that can be found by their tensors, on fakes that say when their numbers are needed."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gridwise.torch_internals.tracer import (
    NEEDS_NUMBERS,
    TracedTensor,
    TracedTensorMode,
    as_if_not_traced,
    become,
    current_tracer,
    failures_not_logged,
    is_tracing,
    lstm_states_fixed,
    make_fx,
    node_of,
    noted_call,
)


def test_nodes_are_found_by_their_tensors_while_a_graph_is_made() -> None:
    seen: list[Any] = []

    def function(x: Tensor) -> Tensor:
        y = x.sin()
        seen.extend([is_tracing(), node_of(y).target, node_of(x).op, type(current_tracer()).__name__])
        with torch.no_grad():
            return y + 1

    graph = make_fx(function, pre_dispatch=True)(torch.ones(2)).graph
    assert seen[:3] == [True, torch.ops.aten.sin.default, "placeholder"]
    assert not is_tracing()
    assert torch.ops.aten.sin.default in [node.target for node in graph.nodes]


def test_every_node_passes_through_create_node_of_the_tracer() -> None:
    made: list[object] = []

    def function(x: Tensor) -> Tensor:
        tracer = current_tracer()
        create = tracer.create_node
        tracer.create_node = lambda *args, **kwargs: (made.append(args[1]), create(*args, **kwargs))[1]
        try:
            return x.sin().cos()
        finally:
            del tracer.create_node

    make_fx(function, pre_dispatch=True)(torch.ones(2))
    assert made == [torch.ops.aten.sin.default, torch.ops.aten.cos.default]


def test_a_call_of_a_function_becomes_a_node_with_its_result() -> None:
    def doubled(parts: tuple[Tensor], by: int) -> list[Tensor]:
        return [part * by for part in parts]

    def function(x: Tensor) -> Tensor:
        result = [torch.empty(2)]
        noted_call(doubled, ([x], 3), result)
        return result[0] + 1

    graph = make_fx(function, pre_dispatch=True)(torch.ones(2))
    node = next(node for node in graph.graph.nodes if node.target is doubled)
    assert node.args == ([next(iter(graph.graph.nodes))], 3)
    assert graph(torch.tensor([1.0, 2.0])).tolist() == [4.0, 7.0]


def test_fakes_have_no_numbers_and_say_so() -> None:
    mode = TracedTensorMode(allow_non_fake_inputs=True)
    with mode:
        x = torch.empty(2, 3)
        assert type(x) is TracedTensor
        assert x.fake_mode is mode
        for asked in (x.sum().item, x.nonzero):
            with pytest.raises(NEEDS_NUMBERS):
                asked()
        assert [str(error.func) for error in mode.unanswered] == [
            "aten._local_scalar_dense.default",
            "aten.nonzero.default",
        ]
        mode.answer = lambda operator, args, kwargs: 3.0 if args[0] is x else None
        assert torch.ops.aten._local_scalar_dense.default(x) == 3.0
        assert len(mode.unanswered) == 2


def test_a_fake_becomes_real_for_all_that_refer_to_it() -> None:
    cached = functools.lru_cache(lambda: torch.arange(4))
    with TracedTensorMode():
        kept = [cached(), cached()[1:]]
    real = torch.arange(4)
    for fake, value in zip(kept, [real.detach(), real[1:]], strict=True):
        become(fake, value)
    real[1] = 7
    assert [type(x) for x in kept] == [Tensor, Tensor]
    assert cached().tolist() == [0, 7, 2, 3]
    assert kept[1].tolist() == [7, 2, 3]


def test_a_model_does_not_see_that_it_is_traced() -> None:
    flags: list[bool] = []

    def traced(flag: Callable[[], bool], x: Tensor) -> Tensor:
        flags.append(flag())
        with as_if_not_traced():
            flags.append(flag())
        flags.append(flag())
        return x + 1

    flag = getattr(torch.fx._symbolic_trace, "_get_is_fx_tracing", None)
    if flag is None:  # until torch 2.13
        flag = lambda: torch.fx._symbolic_trace._is_fx_tracing_flag  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_fx(lambda x: traced(flag, x), pre_dispatch=True)(torch.ones(2))
    assert flags == [True, False, True]


def test_states_of_an_lstm_have_the_dims_of_real_ones() -> None:
    lstm, x = nn.LSTM(2, 3), torch.ones(4, 1, 2)
    shapes: list[Any] = []

    def run(x: Tensor) -> Tensor:
        y, (h, c) = lstm(x)
        shapes.append((y.shape, h.shape, c.shape))
        return y

    wrapped: list[object] = []
    mode = TracedTensorMode(allow_non_fake_inputs=True)
    with mode, lstm_states_fixed(lambda function: (wrapped.append(function), function)[1]):
        make_fx(run, {torch.ops.aten.lstm.input: torch.ops.aten.lstm.input.decompose}, pre_dispatch=True)(
            torch.empty(4, 1, 2)
        )
    y, (h, c) = lstm(x)
    assert shapes == [(y.shape, h.shape, c.shape)]
    assert len(wrapped) == torch.__version__.startswith("2.11.")


def test_failures_on_fakes_are_raised_and_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch logs them with a traceback."""
    logged: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: logged.append(record.getMessage()))
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "handlers", [handler])

    def fails() -> None:
        with TracedTensorMode() as mode:
            x = mode.from_tensor(torch.ones(2, 3))
            with pytest.raises(RuntimeError, match="square"):
                torch.linalg.solve(x, x)

    with failures_not_logged():
        fails()
    assert logged == []
    fails()
    assert "failed while attempting to run meta" in logged[0]
