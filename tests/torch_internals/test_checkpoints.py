"""Checkpoints are noted in every call, and not recomputed while they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from gridwise.torch_internals.checkpoints import checkpoints_noted


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("preserve", [False, True])
def test_checkpoints_are_noted_and_run_once(reentrant: bool, preserve: bool) -> None:
    noted: list[object] = []

    @contextmanager
    def around(kept: bool) -> Iterator[None]:
        noted.append(("around", kept))
        yield
        noted.append("end")

    def call(kept: bool, function: Callable[..., Any], *args: object) -> Any:
        noted.append(("reentrant", kept))
        return function(*args)

    def function(x: torch.Tensor) -> torch.Tensor:
        noted.append("run")
        return x.sin()

    x = torch.ones(2, requires_grad=True)
    run: Callable[[], torch.Tensor] = lambda: checkpoint(  # noqa: E731
        function, x, use_reentrant=reentrant, preserve_rng_state=preserve
    )
    with checkpoints_noted(around, call):
        y = run()
        first = ["run", "end"] if not reentrant else ["run"]
        assert noted == [("reentrant" if reentrant else "around", preserve), *first]
        y.sum().backward()
    assert noted.count("run") == 1
    run().sum().backward()
    assert noted.count("run") == 3, "torch's own recomputes"


def test_an_error_in_a_checkpoint_is_its_own() -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    @contextmanager
    def around(kept: bool) -> Iterator[None]:
        yield

    with checkpoints_noted(around, lambda *args: None), pytest.raises(KeyError, match="mine"):
        checkpoint(failing, torch.ones(1, requires_grad=True), use_reentrant=False)


def test_sequential_checkpoints_are_noted() -> None:
    noted: list[bool] = []

    @contextmanager
    def around(kept: bool) -> Iterator[None]:
        noted.append(kept)
        yield

    layers = [torch.nn.Linear(2, 2) for _ in range(4)]
    with checkpoints_noted(around, lambda *args: None):
        checkpoint_sequential(layers, 2, torch.ones(1, 2, requires_grad=True), use_reentrant=False)
    assert noted == [True]
