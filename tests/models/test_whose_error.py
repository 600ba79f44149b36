"""An error of a model that cannot take its inputs, or one inside Gridwise: told apart, whoever raised it."""

from __future__ import annotations

import importlib
import platform
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gridwise
from gridwise.errors import InternalError, PartitionError
from gridwise.testing import workers

from .recorded import Scaled, distributed


class Misused(Scaled):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise KeyError("no such thing")


def hooked(m: Any, y: Tensor) -> Tensor:
    handle = m.norm.register_forward_hook(lambda module: module)
    try:
        return m.norm(y)
    finally:
        handle.remove()


OF_THE_MODEL: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "a missing attribute": (lambda m, y: y * m.no_such_thing, "no_such_thing"),
    "a wrong argument": (lambda m, y: torch.add(y, "one"), "add"),
    "a wrong shape": (lambda m, y: y.view(7, 7), "invalid"),
    "a wrong call of a module": (lambda m, y: m.norm(y, y), "positional arguments"),
    "a module of other channels": (lambda m, y: nn.Linear(3, 3).double()(y), ""),
    "a composite operator": (lambda m, y: F.pixel_shuffle(y, 3), "pixel_shuffle"),
    "a wrong call of a Function": (lambda m, y: Scaled.apply(y), "factor"),
    "a backward that fails": (lambda m, y: Misused.apply(y, 2.0), "no such thing"),
    "a checkpoint": (lambda m, y: checkpoint(lambda z: z.view(7, 7), y, use_reentrant=False), "invalid"),
    "a reentrant checkpoint": (lambda m, y: checkpoint(lambda z: z[:, "a"], y, use_reentrant=True), "ind"),
    "what calls a module wrongly": (hooked, "positional argument"),
}


@pytest.mark.parametrize("name", OF_THE_MODEL)
def test_an_error_of_the_model_is_one_about_its_input(name: str) -> None:
    function, words = OF_THE_MODEL[name]
    model, _, x = distributed(function)
    with pytest.raises(PartitionError, match=rf"cannot take a global input of shape \(2, 3, 8, 8\).*{words}"):
        model(x.requires_grad_())


def test_too_few_inputs_are_an_error_of_the_call() -> None:
    model = gridwise.distribute(nn.Bilinear(2, 2, 2), gridwise.world().create_cartesian_topology_partition([1, 1]))
    with pytest.raises((TypeError, PartitionError), match="input2"):
        model(torch.ones(2, 2))


@pytest.mark.parametrize(
    "part",
    [
        "torch.utils.checkpoint.CheckpointFunction",
        "torch.autograd.function.FunctionCtx.mark_dirty",
        "gridwise.models.recording.tracing.make_fx",
        "gridwise.models.recording.regions.node_of",
    ],
)
def test_what_a_torch_no_longer_has_is_an_internal_error(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, x = distributed(lambda m, y: Scaled.apply(y, 2.0))
    monkeypatch.delattr(part)
    with pytest.raises(InternalError, match=r"an error inside Gridwise.*(Attribute|Name)Error") as info:
        model(x.requires_grad_())
    said = str(info.value)
    assert "cannot take" not in said
    assert f"torch {torch.__version__}, Python {platform.python_version()}" in said
    assert re.search(r"in models\.recording\.\w+, line \d+, .+\n(.|\n)*fix: `gridwise doctor`", said)


@pytest.mark.parametrize(
    "part",
    [
        "gridwise.models.placing.value_of",
        "gridwise.models.movement.enter",
        "gridwise.models.recording.digest.digest_of",
    ],
)
def test_what_fails_after_the_model_has_run_is_one_too(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the recording is finished, and placed on blocks."""
    model, _, x = distributed(lambda m, y: y * 2)
    module, _, name = part.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    namespace: dict[str, Any] = {}
    exec(f"def {name}(*args, **kwargs): raise AttributeError('no longer there')", namespace)
    for attribute in ("__code__", "__defaults__", "__kwdefaults__"):  # wherever it is imported
        monkeypatch.setattr(found, attribute, getattr(namespace[name], attribute))
    with pytest.raises(InternalError, match=r"an error inside Gridwise.* no longer there(.|\n)*fix: `gridwise doctor`"):
        model(x)


@workers(2, transports=("mpi",))
def test_an_internal_error_of_some_workers_is_one_of_all() -> None:
    model = gridwise.distribute(nn.Conv2d(1, 1, 1), gridwise.world().create_cartesian_topology_partition([2, 1, 1, 1]))
    with pytest.MonkeyPatch.context() as patch:
        if gridwise.world().rank == 1:
            patch.delattr("torch.utils.checkpoint.CheckpointFunction")
        with pytest.raises(
            InternalError, match=r"cannot be recorded on some workers(.|\n)*worker 1: .*inside Gridwise"
        ):
            model(torch.ones(1, 1, 2, 2))
