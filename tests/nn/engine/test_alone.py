"""On a single worker a layer is torch's own function: equal to it in all, noticed where it changes, refused in our words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gridwise
from gridwise import nn
from gridwise.errors import PartitionError
from gridwise.nn.engine import agreement, module
from gridwise.testing import workers


def alone(dims: int) -> gridwise.CartesianPartition:
    """A grid of one worker: the last."""
    world = gridwise.world()
    return world.create_partition_inclusive([world.size - 1]).create_cartesian_topology_partition([1] * dims)


LAYERS: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[int, ...]]] = {
    "conv": (
        lambda: nn.DistributedConv2d(alone(4), 2, 4, 3, 2, 1, groups=2),
        lambda: torch.nn.Conv2d(2, 4, 3, 2, 1, groups=2),
        (2, 2, 7, 6),
    ),
    "same": (
        lambda: nn.DistributedConv1d(alone(3), 2, 3, 4, padding="same"),
        lambda: torch.nn.Conv1d(2, 3, 4, padding="same"),
        (2, 2, 7),
    ),
    "circular": (
        lambda: nn.DistributedConv1d(alone(3), 2, 3, 3, padding=1, padding_mode="circular"),
        lambda: torch.nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"),
        (2, 2, 7),
    ),
    "max pool": (lambda: nn.DistributedMaxPool2d(alone(4), 3, 2, 1), lambda: torch.nn.MaxPool2d(3, 2, 1), (2, 2, 7, 6)),
    "batch norm": (lambda: nn.DistributedBatchNorm2d(alone(4), 2), lambda: torch.nn.BatchNorm2d(2), (2, 2, 7, 6)),
    "mean of batches": (
        lambda: nn.DistributedBatchNorm2d(alone(4), 2, momentum=None),
        lambda: torch.nn.BatchNorm2d(2, momentum=None),
        (2, 2, 7, 6),
    ),
    "linear": (lambda: nn.DistributedLinear(alone(2), 3, 4), lambda: torch.nn.Linear(3, 4), (5, 3)),
    "layer norm": (lambda: nn.DistributedLayerNorm(alone(3), (2, 3)), lambda: torch.nn.LayerNorm((2, 3)), (5, 2, 3)),
    "group norm": (lambda: nn.DistributedGroupNorm(alone(3), 2, 4), lambda: torch.nn.GroupNorm(2, 4), (5, 4, 3)),
    "prelu": (lambda: nn.DistributedPReLU(alone(3), 4), lambda: torch.nn.PReLU(4), (5, 4, 3)),
}


@workers(1, 2)
@pytest.mark.parametrize("name", LAYERS)
def test_later_calls_are_torchs(name):
    make, sequential, shape = LAYERS[name]
    layer, plain = make(), sequential()
    is_last = gridwise.world().rank == gridwise.world().size - 1
    if is_last:
        layer.load_state_dict(plain.state_dict())
    for step in range(4):
        for each in (layer, plain):
            each.train(step < 3)
        x = torch.randn(shape if step != 2 else (3, *shape[1:]), requires_grad=True)
        if not is_last:
            layer(x[:0] if len(shape) == 2 else x.flatten()[:0].view(0, *shape[1:]))
            continue
        found, wanted = ([y, *torch.autograd.grad(y.square().sum(), [x, *each.parameters()])]
                         for each in (layer, plain) for y in [each(x)])  # fmt: skip
        torch.testing.assert_close(found, wanted)
    if is_last:
        torch.testing.assert_close(dict(layer.state_dict()), dict(plain.state_dict()), check_dtype=False)


def test_nothing_is_agreed_after_the_first_call_of_a_structure(monkeypatch):
    layer, loss = nn.DistributedConv1d(alone(3), 1, 2, 3, padding=1), nn.DistributedCrossEntropyLoss(alone(3))
    calls: list[str] = []
    monkeypatch.setattr(module, "agree_plan", lambda *args: calls.append(args[2]) or agreement.agree_plan(*args))
    target = torch.zeros(2, 4, dtype=torch.int64)

    def call(x: Tensor) -> int:
        calls.clear()
        loss(layer(x), target).backward()
        return len(calls)

    assert [call(torch.ones(2, 1, 4)) for _ in range(3)] == [2, 0, 0]
    layer.padding = (2,)
    layer.padding = (1,)
    assert [call(torch.ones(2, 1, 4)) for _ in range(2)] == [1, 0]  # a change is looked at
    layer.double()
    assert [call(torch.ones(2, 1, 4, dtype=torch.float64)) for _ in range(2)] == [2, 0]


def test_what_torch_refuses_is_refused_in_our_words():
    loss = nn.DistributedCrossEntropyLoss(alone(2))
    x = torch.zeros(2, 4)
    for _ in range(2):
        loss(x, torch.tensor([0, 3]))
        with pytest.raises(PartitionError, match="needs targets from 0 to 3"):
            loss(x, torch.tensor([0, 4]))
    norm = nn.DistributedBatchNorm1d(alone(2), 3)
    norm(torch.randn(2, 3))
    with pytest.raises(PartitionError, match="more than 1 value per channel"):
        norm(torch.randn(1, 3))
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre", "module_forward"])
def test_hooks_run_under_compile(kind: str) -> None:
    layer, x, seen = nn.DistributedLinear(alone(2), 3, 2), torch.ones(4, 3, requires_grad=True), []
    layer(x)
    of_all = kind == "module_forward"
    register = getattr(torch.nn.modules.module if of_all else layer, f"register_{kind}_hook")
    handle = register(lambda module, *_: seen.append(1) if module is layer else None)
    try:
        model = torch.nn.Sequential(layer)
        model.compile(backend="eager")
        for _ in range(2):
            model(x).sum().backward()
    finally:
        handle.remove()
    assert len(seen) == 2


@pytest.mark.parametrize("name", ["batch norm", "conv", "cross entropy"])
def test_what_torch_cannot_do_now_is_tried_once(monkeypatch, name):
    """An error that is not about the input, such as running out of memory, is torch's own, and nothing counts twice."""
    function, layer, inputs = {
        "batch norm": ("batch_norm", nn.DistributedBatchNorm1d(alone(2), 3), (torch.randn(2, 3),)),
        "conv": ("conv1d", nn.DistributedConv1d(alone(3), 3, 2, 2), (torch.randn(2, 3, 4),)),
        "cross entropy": (
            "cross_entropy",
            nn.DistributedCrossEntropyLoss(alone(2)),
            (torch.randn(2, 3), torch.tensor([0, 2])),
        ),
    }[name]
    expected, calls, plain = layer(*inputs), [], getattr(torch.nn.functional, function)

    def exhausted(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.is_meta or x.numel() <= 2:  # of set-up, which tries shapes and dtypes
            return plain(x, *args, **kwargs)
        calls.append(1)
        raise torch.OutOfMemoryError("not enough memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, function, exhausted)
        if name == "conv":
            patch.setattr(type(layer), "function", {1: exhausted})
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError, match="not enough memory"):
                layer(*inputs)
    assert len(calls) == 2
    torch.testing.assert_close(layer(*inputs), expected)
    if name == "batch norm":
        assert layer.num_batches_tracked == 4  # torch's own layer counts a batch before it fails, too


def test_a_class_of_a_user_goes_its_own_way():
    class Mine(nn.DistributedConv1d):
        def _local(self, x):
            return super()._local(x) + 1

    layer, x = Mine(alone(3), 1, 1, 1, bias=False), torch.zeros(1, 1, 3)
    for _ in range(3):
        assert torch.equal(layer(x), torch.ones(1, 1, 3))


@pytest.mark.parametrize("change", ["circular", "no momentum"])
def test_settings_that_torchs_function_does_not_know_keep_the_layers_own_road(change: str) -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 1])
    layer = nn.DistributedConv1d(P, 2, 2, 3, padding=1) if change == "circular" else nn.DistributedBatchNorm1d(P, 2)
    x = torch.randn(2, 2, 8)
    layer(x)
    assert layer._plans.settled
    if change == "circular":
        layer = nn.DistributedConv1d(P, 2, 2, 3, padding=1, padding_mode="circular")
    else:
        layer.momentum = None
    layer(x)
    assert not layer._plans.settled


@workers(1, 2)
@pytest.mark.parametrize("setting", ["stride", "padding", "dilation", "ceil_mode", "return_indices", "kernel_size"])
def test_a_setting_that_comes_back_counts_again(setting: str) -> None:
    values = {"ceil_mode": (True, False), "return_indices": (True, False), "kernel_size": (2, 3), "padding": (1, 0)}
    P, x = alone(4), torch.randn(1, 1, 9, 9)
    if not P.active:
        x = x.flatten()[:0].view(0, 1, 9, 9)
    layer, plain = nn.DistributedMaxPool2d(P, 2), torch.nn.MaxPool2d(2)
    for value in values.get(setting, (2, 1)) * 2:
        setattr(layer, setting, value)
        setattr(plain, setting, value)
        for _ in range(2):
            found = layer(x)
            if P.active:
                torch.testing.assert_close(found, plain(x))
