"""Models that could go wrong on blocks without a word: equal to the sequential model, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.testing import workers


class Pair(NamedTuple):
    first: Any
    second: Any


class Of(nn.Module):
    """A convolution, and then a function of the module and of what it gives."""

    def __init__(self, function: Callable[[Of, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.conv = function, nn.Conv2d(4, 4, 3, padding=1)
        self.register_buffer("scale", torch.tensor([2.0, 3.0, 5.0, 7.0]).view(4, 1, 1))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.conv(x))


def added_and_held(m: Of, y: Tensor) -> Tensor:
    z = y
    y += 1.0
    return y * z


def counted(m: Of, y: Tensor) -> Tensor:
    m.count.add_(1)
    return y * m.count


def uneven_chunks(m: Of, y: Tensor) -> Tensor:
    a, b = y[:, :3].chunk(2, 1)
    return a.amax((0, 2, 3), keepdim=True) + b.amax((0, 2, 3), keepdim=True)


EQUAL: dict[str, Callable[[Of, Tensor], Tensor]] = {
    "added in place and held": added_and_held,
    "a buffer that counts": counted,
    "a buffer of its own": lambda m, y: y * (m.scale * 2),
    "cat along axis": lambda m, y: torch.cat([y, 2 * y], axis=1),
    "chunk along axis": lambda m, y: y.chunk(2, axis=1)[0] * y.chunk(2, axis=1)[1],
    "sum with keepdims": lambda m, y: y / (1 + y.pow(2).sum(axis=1, keepdims=True)),
    "uneven chunks": uneven_chunks,
    "any over no dims": (lambda m, y: y * y.gt(0).any(dim=())),
    "flip of no dims": (lambda m, y: y * y.flip(())),
    "a buffer in the dtype of a tensor": lambda m, y: m.scale.type_as(y) + y,
}


def check(function: Callable[[Of, Tensor], Tensor], grid: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    P, sequential = gridwise.world().create_cartesian_topology_partition(grid), Of(function).double()
    model = gridwise.distribute(copy.deepcopy(sequential), P)
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64, requires_grad=True)
    mine = x.detach()[gridwise.local_slice(P, x.shape)].clone().requires_grad_()
    for _ in range(3):
        expected, y = sequential(x), model(mine)
        torch.testing.assert_close(y, expected[gridwise.local_slice(model.P_y, expected.shape)])
    if expected.requires_grad:
        expected.square().sum().backward()
        y.square().sum().backward()
    if x.grad is not None:
        torch.testing.assert_close(mine.grad, x.grad[gridwise.local_slice(P, x.shape)], equal_nan=True)
    for own, buffer in zip(model.buffers(), sequential.buffers(), strict=True):
        torch.testing.assert_close(own, buffer)


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("grid", [(1, 1, 2, 1), (1, 2, 1, 1), (2, 1, 1, 1)], ids=["space", "channel", "batch"])
@pytest.mark.parametrize("name", EQUAL)
def test_equal(name: str, grid: tuple[int, ...]) -> None:
    check(EQUAL[name], grid)


def seen_after(change: Callable[[Tensor], Tensor]) -> Callable[[Of, Tensor], Tensor]:
    def function(m: Of, y: Tensor) -> Tensor:
        z = change(y).flatten(1)
        y.relu_()
        return z

    return function


def changed_view(m: Of, y: Tensor) -> Tensor:
    view = y[:, :1]
    view += 1.0
    return y


def table(m: Of, y: Tensor) -> Tensor:
    return m.conv.weight[(y > 0).long()]


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


reverse = Reversed.apply


def under(make: Callable[[], Any]) -> Callable[[Of, Tensor], Tensor]:
    def function(m: Of, y: Tensor) -> Tensor:
        with make():
            return m.conv(y)

    return function


def switched(m: Of, y: Tensor) -> Tensor:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = m.conv(y)
    torch.set_grad_enabled(before)
    return y


def as_pair(m: Of, y: Tensor) -> Tensor:
    pair = Pair(y, {"bias": m.conv.bias})
    return pair.first * pair.second["bias"].view(4, 1, 1)


EITHER: dict[str, Callable[[Of, Tensor], Tensor]] = {
    "a factor of the mode": lambda m, y: y * (2.0 if m.training else 1.0),
    "contiguous": seen_after(lambda y: y.contiguous()),
    "detach": seen_after(lambda y: y.detach()),
    "expand": seen_after(lambda y: y.expand(-1, -1, -1, -1)),
    "expand as": seen_after(lambda y: y.expand_as(y)),
    "einsum of one": seen_after(lambda y: torch.einsum("bchw->bcwh", y)),
    "einsum of one in a list": seen_after(lambda y: torch.einsum("bchw->bcwh", [y])),
    "an attribute": seen_after(lambda y: y.mT),
    "a view by keyword": seen_after(lambda y: torch.flatten(input=y, start_dim=1)),
    "dropout by function": seen_after(lambda y: F.dropout(y, 0.5, False)),
    "a parameter indexed by the grid": table,
    "a parameter repeated by a size": (
        lambda m, y: y + m.conv.bias.view(4, 1).repeat_interleave(y.shape[3], 1).view(4, 1, -1)
    ),
    "a parameter in a named tuple": as_pair,
    "where of one": lambda m, y: y * torch.where(y > 0)[0].sum(),
    "a view that is changed": changed_view,
    "a buffer changed by the grid": lambda m, y: y + m.count.add_(y.detach().mean((0, 1, 2, 3))),
    "mean over no dims": lambda m, y: y - y.mean(dim=()),
    "sum over no dims": lambda m, y: y - y.sum([]),
    "amax over no dims": lambda m, y: y - y.amax(()),
    "std over no dims": lambda m, y: y - y.std(dim=[]),
    "std_mean over no dims": lambda m, y: y - torch.std_mean(y, dim=())[1],
    "norm over no dims": lambda m, y: y - y.norm(2, []),
    "vector norm over no dims": lambda m, y: y - torch.linalg.vector_norm(y, dim=()),
    "normalize over no dims": lambda m, y: F.normalize(y, dim=()),
    "roll of no dims": lambda m, y: y.roll(1, ()),
    "a function of autograd": lambda m, y: Reversed.apply(y),
    "one that was bound before": lambda m, y: reverse(y),
    "one of a parameter": lambda m, y: y + Reversed.apply(m.conv.bias).sum(),
    "no_grad": under(torch.no_grad),
    "enable_grad": under(torch.enable_grad),
    "inference_mode": under(torch.inference_mode),
    "grad switched off": switched,
    "no autocast": under(lambda: torch.autocast(torch.get_default_device().type, enabled=False)),
    "sizes of parameters": lambda m, y: y[:, :, :4] + m.scale.view(4, -1, 1),
}


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("grid", [(1, 1, 2, 1), (1, 2, 1, 1)], ids=["space", "channel"])
@pytest.mark.parametrize("name", EITHER)
def test_equal_or_refused(name: str, grid: tuple[int, ...]) -> None:
    try:
        check(EITHER[name], grid)
    except UnsupportedError as error:
        assert ".py:" in str(error), error  # noqa: PT017
    assert torch.is_grad_enabled()


@workers(2, transports=("mpi",))
def test_distributed_under_no_grad_and_autocast() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    with torch.no_grad(), torch.autocast(torch.get_default_device().type, torch.bfloat16):
        model = gridwise.distribute(Of(lambda m, y: y.relu()), P, example=(1, 4, 4, 4))
        assert not torch.is_grad_enabled()
        y = model(torch.ones(1, 4, 2, 4))
        assert (y.dtype, y.requires_grad) == (torch.bfloat16, False)
    y = model(torch.ones(1, 4, 2, 4))
    assert (y.dtype, y.requires_grad) == (torch.float32, True)


@workers(2, transports=("mpi",))
def test_a_distributed_model_is_not_distributed_again() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    model = gridwise.distribute(nn.Sequential(nn.Conv2d(1, 1, 1)), P)
    layer = gridwise.nn.DistributedConv2d(P, 1, 1, 1)
    for again in (model, nn.Sequential(nn.ReLU(), model), nn.Sequential(nn.ReLU(), layer), layer):
        with pytest.raises(UnsupportedError, match="is already distributed"):
            gridwise.distribute(again, P)


@workers(2, transports=("mpi",))
def test_modules_keep_their_modes() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 1.0, self.training)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner = nn.BatchNorm2d(1), Inner()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.norm(x))

    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    sequential = Outer()
    sequential.norm.eval()
    sequential.inner.eval()
    model, x = gridwise.distribute(copy.deepcopy(sequential), P), torch.randn(1, 1, 4, 4)
    mine = x[gridwise.local_slice(P, x.shape)]
    assert model.training
    torch.testing.assert_close(model(mine), sequential(x)[gridwise.local_slice(P, x.shape)])
    for each in (model, sequential):
        each.inner.train()
    assert not model(mine).any()
    assert torch.equal(model.norm.running_mean, torch.zeros(1))


@workers(2, transports=("mpi",))
def test_dropout_that_is_always_on_or_off() -> None:
    class Drop(nn.Module):
        def __init__(self, on: bool) -> None:
            super().__init__()
            self.on = on

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 1.0, training=self.on)

    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    for on in (True, False):
        model = gridwise.distribute(Drop(on), P)
        for mode in (True, False):
            assert bool(model.train(mode)(torch.ones(1, 1, 2, 2)).any()) != on
