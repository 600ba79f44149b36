"""Products, functional convolutions, and what repeats tensors, in converted models: equal to sequential, or named."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.errors import PartitionError
from gridwise.testing import workers

from .of_functions import GRIDS, Of, OfTwo, check, check_or_refused, parameter


def tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


def with_class_token(m: Any, x: Tensor) -> Tensor:
    y = tokens(x)
    return torch.cat([m.cls.expand(y.shape[0], -1, -1), y], 1) + m.position


def with_repeated_token(m: Any, x: Tensor) -> Tensor:
    b, n = x.size(0), x.size(2) * x.size(3)
    y = torch.cat((m.cls.repeat(b, 1, 1), tokens(x)), dim=1)
    return y + m.position[:, : (n + 1)]


def standardised(m: Any, x: Tensor) -> Tensor:
    w = m.weight - m.weight.mean((1, 2, 3), keepdim=True)
    return F.conv2d(x, w / (w.std((1, 2, 3), keepdim=True) + 1e-5), m.bias, 1, 1)


class Doubled(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def tied() -> nn.Module:
    model = Of(lambda m, x: m.b(m.a(x)) + m.a(x), a=nn.Conv2d(4, 4, 3, padding=1), b=nn.Conv2d(4, 4, 3, padding=1))
    model.b.weight = model.a.weight
    return model


def tied_linear() -> nn.Module:
    model = Of(lambda m, x: m.b(m.a(x).relu()), a=nn.Linear(6, 6), b=nn.Linear(6, 6, bias=False))
    model.b.weight = model.a.weight
    return model


CASES: dict[str, Callable[[], nn.Module]] = {
    "a class token": lambda: Of(with_class_token, cls=parameter(1, 1, 4), position=parameter(1, 43, 4)),
    "a repeated token": lambda: Of(with_repeated_token, cls=parameter(1, 1, 4), position=parameter(1, 50, 4)),
    "expand to the channels": lambda: Of(lambda m, x: x + m.w.expand(x.size(1), -1, x.size(3)), w=parameter(4, 7, 1)),
    "expand": lambda: Of(lambda m, x: x.mean((2, 3), keepdim=True).expand(-1, -1, 7, 6) * x),
    "expand to a shape": lambda: Of(lambda m, x: x.amax(2, keepdim=True).expand(x.shape) - x),
    "expand to new dims": lambda: Of(lambda m, x: x.expand(2, -1, -1, -1, -1).sum(0)),
    "expand as": lambda: Of(lambda m, x: x.mean(1, keepdim=True).expand_as(x) + m.w.expand_as(x), w=parameter(7, 1)),
    "repeat": lambda: Of(lambda m, x: x.repeat(1, 2, 1, 1) + torch.tile(x, (2, 1, 1))),
    "repeat rows": lambda: Of(lambda m, x: x.repeat(1, 1, 2, 3).repeat(2, 1, 1, 1, 1)),
    "repeat interleave": lambda: Of(lambda m, x: x.repeat_interleave(2, dim=2) + torch.repeat_interleave(x, 2, 2)),
    "channels against channels": lambda: Of(lambda m, x: x.flatten(2) @ x.flatten(2).transpose(1, 2)),
    "rows against rows": lambda: Of(lambda m, x: torch.matmul(x, x.transpose(2, 3))),
    "bmm": lambda: Of(lambda m, x: torch.bmm(tokens(x), x.flatten(2))),
    "a matrix from the left": lambda: Of(lambda m, x: m.w @ x, w=parameter(5, 7)),
    "a matrix of every channel": lambda: Of(lambda m, x: x @ m.w, w=parameter(4, 6, 3)),
    "a vector": lambda: Of(lambda m, x: x @ m.w, w=parameter(6)),
    "a product of other ranks": lambda: Of(lambda m, x: x @ x.mean(1).transpose(1, 2)[:, None]),
    "a product that broadcasts": lambda: Of(lambda m, x: x.mean(1, keepdim=True).transpose(2, 3) @ x),
    "einsum of channels": lambda: Of(lambda m, x: torch.einsum("bchw,oc->bohw", x, m.w), w=parameter(5, 4)),
    "einsum of two": lambda: Of(lambda m, x: torch.einsum("bchw,bchv->bcwv", x, x.sin())),
    "einsum in another order": lambda: Of(lambda m, x: torch.einsum("bchw,bdhw->cdb", [x, x + 1.0])),
    "einsum of three": lambda: Of(
        lambda m, x: torch.einsum("bchw, c, bhc -> bwh", x, m.w, x.mean(3).transpose(1, 2)), w=parameter(4)
    ),
    "einsum of one tensor twice": lambda: Of(lambda m, x: torch.einsum("bchw,bdhw->bcd", x, x)),
    "einsum of an ellipsis to a number": lambda: Of(lambda m, x: x * torch.einsum("...w->", x)),
    "einsum over an ellipsis": lambda: Of(lambda m, x: torch.einsum("b...w,b...w->...w", x, x.sin())),
    "einsum without a result": lambda: Of(lambda m, x: torch.einsum("...hw,vh", x, m.w), w=parameter(5, 7)),
    "einsum that permutes": lambda: Of(lambda m, x: torch.einsum("bchw->whcb", x)),
    "functional convolution": lambda: Of(
        lambda m, x: F.conv2d(x, m.w, m.b, padding=1), w=parameter(5, 4, 3, 3), b=parameter(5)
    ),
    "groups and strides": lambda: Of(
        lambda m, x: F.conv2d(x, m.w, None, (2, 1), (1, 2), 1, 2).relu(), w=parameter(6, 2, 3, 3)
    ),
    "functional transposed convolution": lambda: Of(
        lambda m, x: F.conv_transpose2d(x, m.w, m.b, stride=2, padding=1, output_padding=1),
        w=parameter(4, 3, 3, 3),
        b=parameter(3),
    ),
    "convolution of rows": lambda: Of(lambda m, x: F.conv1d(x.flatten(2), m.w, padding="same"), w=parameter(3, 4, 3)),
    "standardised weights": lambda: Of(standardised, weight=parameter(4, 4, 3, 3), bias=parameter(4)),
    "own forward of a convolution": lambda: Of(lambda m, x: m.own(x), own=Doubled(4, 4, 3, padding=1)),
    "tied convolutions": tied,
    "tied linear layers": tied_linear,
    "a weight in two places": lambda: Of(lambda m, x: m.fc(x) @ m.fc.weight, fc=nn.Linear(6, 5)),
    "a weight as a penalty": lambda: Of(lambda m, x: m.conv(x) * m.conv.weight.abs().mean(), conv=nn.Conv2d(4, 4, 1)),
}  # fmt: skip


@workers(1, 2, 3, transports=("mpi",))
@pytest.mark.parametrize("name", CASES)
def test_equal_to_sequential(name: str, gridwise_setting: tuple[str, int]) -> None:
    for grid in GRIDS[gridwise_setting[1]]:
        try:
            check(CASES[name], grid)
        except Exception as error:
            raise AssertionError(f"{name} on {grid}: {error}") from error


@workers(2, transports=("gloo",))
@pytest.mark.parametrize("name", ["a class token", "functional convolution", "tied convolutions", "einsum of two"])
def test_over_gloo(name: str) -> None:
    for grid in GRIDS[2]:
        check(CASES[name], grid)


ODD: dict[str, Callable[[], nn.Module]] = {
    "einsum with an ellipsis": lambda: Of(lambda m, x: torch.einsum("...hw->...wh", x)),
    "einsum to a number": lambda: Of(lambda m, x: x * torch.einsum("bchw->", x)),
    "a weight that is computed": lambda: Of(lambda m, x: F.conv2d(x, x[:3, :4])),
    "a stride of a size": lambda: Of(lambda m, x: F.conv2d(x, m.w, stride=x.size(3)), w=parameter(4, 4, 1, 1)),
    "repeats of a tensor": lambda: Of(lambda m, x: x.repeat_interleave(torch.arange(7), 2)),
}  # fmt: skip


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("name", ODD)
def test_equal_or_refused(name: str) -> None:
    check_or_refused(ODD[name], (1, 1, 2, 1))


@workers(2)
def test_a_product_that_broadcasts_along_the_cut_dim() -> None:
    class Product(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x @ y

    P = gridwise.world().create_cartesian_topology_partition((2, 1, 1))
    model = gridwise.distribute(Product(), P)
    x = torch.ones(2, 3, 4)
    assert model(x, torch.ones(2, 4, 5)).shape == (2, 3, 5)
    assert model(x, torch.ones(1 - gridwise.world().rank, 4, 5)).shape == (2, 3, 5)
    with pytest.raises(PartitionError, match="cannot take a global input"):
        model(x, torch.ones(1 + gridwise.world().rank, 4, 5))


def check_two(function: Callable[[Tensor, Tensor], Tensor], *shapes: tuple[int, ...]) -> None:
    """Equal to sequential, on a grid that cuts the batch."""
    P = [gridwise.world().create_cartesian_topology_partition((2, *(1,) * (len(shape) - 1))) for shape in shapes]
    model = gridwise.distribute(OfTwo(function), P[0], y=P[1])
    x, y = (parameter(*shape) for shape in shapes)
    expected = function(x, y)
    got = model(*(t[gridwise.local_slice(p, t.shape)].clone() for t, p in zip((x, y), P, strict=True)))
    torch.testing.assert_close(got, expected[gridwise.local_slice(model.P_y, expected.shape)])


def split_again(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: product(x, y).reshape(x.shape[0], x.shape[1], -1)


BROADCASTING: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "matmul": (lambda x, y: x @ y, (4, 1, 2, 3), (4, 3, 3, 4)),
    "einsum": (lambda x, y: torch.einsum("bnd,bnd->bnd", x, y), (4, 1, 4), (4, 3, 4)),
    "attention": (lambda x, y: F.scaled_dot_product_attention(x, y, y), (4, 1, 6, 4), (4, 2, 3, 4)),
}


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("name", BROADCASTING)
def test_a_product_may_broadcast_along_whole_dims_whose_extents_only_the_call_knows(name: str) -> None:
    product, *shapes = BROADCASTING[name]
    check_two(product, *shapes)
    check_two(split_again(product), *shapes)
    check_two(split_again(product), (4, *shapes[1][1:-1], shapes[0][-1]), shapes[1])


@workers(2, transports=("mpi",))
def test_one_tensor_twice_in_an_einsum_may_be_cut_in_two_ways() -> None:
    for equation in ("ij,ji->ij", "ij,ji->ji", "ij,ij->ij", "ij,jk,ji->ij"):
        for n in (2, 4, 5):
            count = equation.count(",") + 1
            check(lambda: Of(lambda m, x: torch.einsum(equation, *(x,) * count)), (2, 1), (n, n))  # noqa: B023


@workers(3)
def test_tied_weights_stay_one() -> None:
    world = gridwise.world()
    P = world.create_partition_inclusive([0, 1]).create_cartesian_topology_partition((1, 1, 2, 1))
    torch.manual_seed(0)
    sequential = tied().double()
    model = gridwise.distribute(copy.deepcopy(sequential), P)
    assert model.a.weight is model.b.weight
    assert list(model.state_dict()) == list(sequential.state_dict())
    assert len(list(model.parameters())) == len(list(sequential.parameters())) == 3
    model.load_state_dict(sequential.state_dict())
    assert model.double().a.weight is model.b.weight


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("grid", [(1, 1, 2, 1), (2, 1, 1, 1), (2, 1, 1)], ids=["queries", "batch", "without heads"])
def test_what_is_not_finite_in_causal_attention(grid: tuple[int, ...]) -> None:
    """Later keys do not count where torch leaves them out, whatever they are; with dropout too.

    Torch's kernel gives queries whose scores are all nan zeros or nan, by the width of the CPU's vectors: so do the workers.
    """
    P, shape = gridwise.world().create_cartesian_topology_partition(grid), (2, 2, 6, 4)[4 - len(grid) :]
    cases = [(1, 3, 0.0), (1, 3, 0.3), (2, 3, 0.0), (2, 3, 0.3), (0, 3, 0.0), (0, 5, 0.0), (1, 0, 0.0)]
    for value, (which, row, p) in itertools.product((math.nan, math.inf, -math.inf), cases):
        q, k, v = (torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n in range(3))
        (q, k, v)[which].reshape(-1, *shape[-2:])[0, row, 1] = value

        def attention(q: Tensor, k: Tensor, v: Tensor, p: float = p) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)

        model = gridwise.distribute(attention, P)
        torch.manual_seed(1)
        expected = attention(q, k, v)
        with gridwise.sequential_random():
            torch.manual_seed(1)
            y = model(*(x[gridwise.local_slice(P, shape)] for x in (q, k, v)))
        own = expected[gridwise.local_slice(model.P_y, shape)]
        says = f"{value} in row {row} of {'qkv'[which]}, dropout {p}:\n{y}\ninstead of\n{own}\n"
        torch.testing.assert_close(y, own, equal_nan=True, msg=lambda text, says=says: says + text)  # type: ignore[misc]


def test_queries_that_see_nothing_under_dropout_are_zeros() -> None:
    sees = torch.ones(6, 6, dtype=torch.bool).tril(-1)
    for mask in (sees, torch.zeros(6, 6).masked_fill(~sees, -math.inf)):
        x, P = torch.randn(2, 6, 4), gridwise.world().create_cartesian_topology_partition([1, 1, 1])
        model = gridwise.distribute(lambda x, mask=mask: F.scaled_dot_product_attention(x, x, x, mask, 0.3), P)
        mine, whole = (x.clone().requires_grad_() for _ in range(2))
        with gridwise.sequential_random():
            torch.manual_seed(1)
            y = model(mine)
        torch.manual_seed(1)
        expected = F.scaled_dot_product_attention(whole, whole, whole, mask, 0.3)
        torch.testing.assert_close(y, expected)
        y.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(mine.grad, whole.grad)
