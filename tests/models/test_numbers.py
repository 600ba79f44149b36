"""Tensors that depend on no input have numbers while a model is recorded, and what the model keeps of them is kept."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.models.model import runner_of
from gridwise.testing import workers

from .recorded import Of, check, partition


def mask_of(n: int) -> Tensor:
    return torch.arange(n) % 3 != 1


def weights_by_counts(m: Any, y: Tensor) -> Tensor:
    """As losses that weight their classes do: a few classes are chosen by a mask of the weights."""
    w = torch.ones(y.shape[1])
    w[0] = 0.0
    if w.min() == 0 and bool((w > 0).any()):
        y = y[:, w > 0]
    return y * w.sum().item()


def written_after(m: Any, y: Tensor) -> Tensor:
    table = torch.zeros(4)
    rows = table[1:3]
    before = table.tolist()
    rows.fill_(2)
    table[0] += 1
    return y * (1 + sum(before)) * sum(table.tolist()) + rows.sum().to(y.dtype)


def off_diagonal(m: Any, y: Tensor) -> Tensor:
    """As decorrelating losses take the elements of a square matrix beside its diagonal."""
    c = y.flatten(2).sum(0) @ y.flatten(2).sum(0).T
    return c[~torch.eye(c.shape[0], dtype=torch.bool)].square().sum() * y


def padded(m: Any, y: Tensor) -> Tensor:
    """As libraries of filters compute the padding of a kernel that is a tensor."""
    kernel = torch.tensor([1.0, 2.0, 1.0], dtype=y.dtype)
    size = torch.tensor([len(kernel), 1])
    front = [int(n) // 2 for n in size]
    kernel = (kernel / kernel.sum()).view(1, 1, *size.tolist()).expand(y.shape[1], -1, -1, -1)
    return nn.functional.conv2d(
        nn.functional.pad(y, [front[1], front[1], front[0], front[0]]), kernel, groups=y.shape[1]
    )


def by_a_buffer(m: Any, y: Tensor) -> Tensor:
    return 2 * y if m.flag.item() > 0 else -y


NUMBERS: dict[str, Callable[[Any, Tensor], Any]] = {
    "a list": lambda m, y: y * sum(torch.arange(4).tolist()),
    "an array": lambda m, y: y * float(np.asarray(torch.linspace(0, 1, 5)).sum() + torch.ones(2).numpy()[0]),
    "a branch": lambda m, y: y if torch.linspace(0, 1, y.shape[2]).sum() > 100 else -y,
    "a constant like the input": lambda m, y: (
        y * torch.ones_like(y[0, 0]).sum().item() * y.new_full((2,), 3).max().item()
    ),
    "indices": lambda m, y: y[:, mask_of(4).nonzero()[:, 0]],
    "a mask": lambda m, y: y[:, mask_of(4)],
    "masks of several dims": lambda m, y: y[torch.arange(8).view(2, 4) > 2, 1:],
    "a selection": lambda m, y: torch.masked_select(y, mask_of(8)),
    "counts": lambda m, y: y[:, :2].repeat_interleave(torch.tensor([1, 2]), 1),
    "unique values": lambda m, y: y * torch.unique(torch.tensor([3, 1, 3])).numel() * len(torch.arange(3).unique()),
    "a number of a real tensor": lambda m, y: y * OUTSIDE[1].item(),
    "slices by tensors": lambda m, y: y[:, : torch.tensor(3)] * torch.tensor([2, 3])[torch.tensor(1)],
    "weights of classes": weights_by_counts,
    "what is written after": written_after,
    "elements beside a diagonal": off_diagonal,
    "padding": padded,
    "no check of equality": lambda m, y: y * 2 if torch.equal(torch.arange(2), torch.tensor([0, 1])) else y,
    "a buffer": by_a_buffer,
}
OUTSIDE = torch.tensor([1.0, 5.0], dtype=torch.float64)


class WithFlag(Of):
    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__(function)
        self.register_buffer("flag", torch.ones(()))


def made(function: Callable[[Any, Tensor], Any]) -> tuple[Any, nn.Module, Tensor]:
    torch.manual_seed(0)
    sequential = WithFlag(function).double()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    return gridwise.distribute(copy.deepcopy(sequential), partition()), sequential, x


@pytest.mark.parametrize("name", NUMBERS)
def test_constants_have_numbers(name: str) -> None:
    model, sequential, x = made(NUMBERS[name])
    check(model, sequential, x)
    targets = {str(node.target) for node in runner_of(model).recording.module.graph.nodes}
    assert not any(
        word in target for target in targets for word in ("scalar_dense", "nonzero", "masked_select", "unique")
    )
    if name != "what is written after":
        assert (
            sum("aten" in target for target in targets) <= 12
        )  # what was made for its numbers only is not computed again


def test_a_buffer_that_is_read_and_changes_later_is_read_again() -> None:
    model, sequential, x = made(by_a_buffer)
    for value in (1.0, -1.0, 1.0):
        for each in (model, sequential):
            each.flag.fill_(value)
        check(model, sequential, x)
        first = runner_of(model).recording
        model(x.clone().requires_grad_())
        assert runner_of(model).recording is first


def test_a_tensor_outside_that_is_read_and_changes_later_is_read_again() -> None:
    outside = torch.tensor([2.0])
    model, sequential, x = made(lambda m, y: y if outside.item() > 0 else -y)
    for value in (1.0, -1.0):
        outside[0] = value
        check(model, sequential, x)


class Grids(nn.Module):
    """Keeps what depends on shapes, as libraries do."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.conv, self.grid, self.grids = way, nn.Conv2d(3, 2, 1), None, {}
        self.mean = torch.zeros(1, 3, 1, 1, dtype=torch.float32) + 0.25
        self.holder = Holder()

    def cached(self, h: int, w: int) -> Tensor:
        if self.way == "attribute":
            if self.grid is None or self.grid.shape != (h, w):
                self.grid = grid_of(h, w)
            return self.grid
        if self.way == "dict":
            if (h, w) not in self.grids:
                self.grids[h, w] = [grid_of(h, w)]
            return self.grids[h, w][0]
        if self.way == "object":
            if self.holder.grid is None:
                self.holder.grid = grid_of(h, w)
            return self.holder.grid
        if self.way == "buffer":
            if not hasattr(self, "buffered"):
                self.register_buffer("buffered", grid_of(h, w), persistent=False)
            return self.buffered
        if self.way == "in pieces":
            if self.grid is None:
                self.grid = torch.zeros(h, w)
                self.grid[:, :] = grid_of(h, w)
            return self.grid
        if self.way == "each call":
            self.grid = grid_of(h, w)
            return self.grid
        return (once if self.way == "lru_cache" else in_a_global)(h, w)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "type_as":
            self.mean = self.mean.type_as(x)
            return self.conv(x - self.mean)
        grid = self.cached(*x.shape[-2:])
        return self.conv(x) * grid.to(x.dtype)


class Holder:
    grid: Tensor | None = None


def grid_of(h: int, w: int) -> Tensor:
    return torch.linspace(0, 1, h).view(h, 1) + torch.linspace(-1, 0, w)


KEPT: dict[tuple[int, int], Tensor] = {}


@functools.lru_cache
def once(h: int, w: int) -> Tensor:
    return grid_of(h, w)


def in_a_global(h: int, w: int) -> Tensor:
    if (h, w) not in KEPT:
        KEPT[h, w] = grid_of(h, w)
    return KEPT[h, w]


def of(way: str, model: Any, h: int, w: int) -> Any:
    places = {"attribute": model.grid, "dict": model.grids, "object": model.holder.grid}
    places |= {"each call": model.grid, "in pieces": model.grid}
    places |= {"buffer": getattr(model, "buffered", None), "type_as": model.mean, "lru_cache": once, "global": KEPT}
    found = places[way]
    if way == "dict":
        return found[h, w][0]
    return found(h, w) if way == "lru_cache" else found[h, w] if way == "global" else found


WAYS = ["attribute", "dict", "object", "buffer", "in pieces", "each call", "lru_cache", "global", "type_as"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("run", ["distribute", "tiled"])
def test_what_depends_on_shapes_is_kept(way: str, run: str) -> None:
    once.cache_clear()
    KEPT.clear()
    torch.manual_seed(0)
    sequential = Grids(way).double()
    own = copy.deepcopy(sequential)
    model = gridwise.distribute(own, partition()) if run == "distribute" else gridwise.tiled(own, tile=3)
    for h, w in ((6, 5), (4, 7), (6, 5)) if way in ("attribute", "dict", "lru_cache", "global") else ((6, 5),):
        for x in torch.randn(2, 2, 3, h, w, dtype=torch.float64):
            y = model(x)
            kept = of(way, model, h, w)
            assert type(kept) is Tensor
            torch.testing.assert_close(y, sequential(x))
            torch.testing.assert_close(kept, of(way, sequential, h, w))


@workers(2, transports=("mpi",))
def test_on_several_workers() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    x = torch.randn(2, 3, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    block = x.chunk(2, 2)[gridwise.world().rank]
    for way in ("attribute", "lru_cache", "type_as"):
        once.cache_clear()
        KEPT.clear()
        torch.manual_seed(0)
        sequential = Grids(way).double()
        model = gridwise.distribute(copy.deepcopy(sequential), P)
        for _ in range(2):
            torch.testing.assert_close(model(block), sequential(x).chunk(2, 2)[gridwise.world().rank])
        torch.testing.assert_close(of(way, model, 6, 5), of(way, sequential, 6, 5))
    for name in ("weights of classes", "elements beside a diagonal", "masks of several dims"):
        torch.manual_seed(0)
        whole = WithFlag(lambda m, y, name=name: NUMBERS[name](m, y).square().sum()).double()
        twin = gridwise.distribute(copy.deepcopy(whole), P)
        mine, other = block.clone().requires_grad_(), x.clone().requires_grad_()
        loss, expected = twin(mine), whole(other)
        torch.testing.assert_close(loss, expected)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(mine.grad, other.grad.chunk(2, 2)[gridwise.world().rank])


def keeps_statistics(m: Any, y: Tensor) -> Tensor:
    """As normalising flows set their scale by the first batch."""
    if m.cache is None:
        m.cache = y.detach().std((0, 2, 3), keepdim=True)
    return y / m.cache


def starts_once(m: Any, y: Tensor) -> Tensor:
    if not m.flag.item():
        m.flag.fill_(1)
    return y


def kept_elsewhere(m: Any, y: Tensor) -> Tensor:
    ELSEWHERE.append(y.sin())
    return y


REFUSED: dict[str, tuple[Callable[[Any, Tensor], Any], tuple[str, ...]]] = {
    "statistics": (
        keeps_statistics,
        ("keeps a tensor that depends on input 0", "WithFlag.cache: was None", "in keeps_statistics", "once before"),
    ),
    "a flag": (
        starts_once,
        ("the numbers of buffer flag, which it changes in fill_", "in starts_once", "call the model once before"),
    ),
    "a list elsewhere": (
        kept_elsewhere,
        ("shape (2, 4, 8, 8), in a list in `ELSEWHERE` of", "on input 0; made in test_numbers.py", "ELSEWHERE.append("),
    ),
    "a parameter": (lambda m, y: y * m.conv.bias.tolist()[0], ("depends on parameter conv.bias", "test_numbers.py:")),
    "random numbers": (lambda m, y: y * torch.rand(2).sum().item(), ("depends on random numbers (rand",)),
    "an array of an input": (lambda m, y: y * y.detach().numpy().sum(), ("depends on input 0", "test_numbers.py:")),
}
ELSEWHERE: list[Tensor] = []


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("run", ["distribute", "tiled"])
def test_what_has_no_numbers_is_refused_by_name(name: str, run: str, capfd: pytest.CaptureFixture[str]) -> None:
    ELSEWHERE.clear()
    function, words = REFUSED[name]
    own = WithFlag(function).double()
    own.flag.zero_()
    model = gridwise.distribute(own, partition()) if run == "distribute" else gridwise.tiled(own, tile=4)
    with pytest.raises(UnsupportedError) as info:
        model(torch.randn(2, 3, 8, 8, dtype=torch.float64))
    for each in words:
        assert each in str(info.value)
    assert capfd.readouterr() == ("", "")
    assert own.cache is None
    assert not own.flag


def test_what_is_kept_before_an_error_is_real() -> None:
    once.cache_clear()

    def fails(m: Any, y: Tensor) -> Tensor:
        return y * once(8, 8) * y.sum().item()

    model, _, x = made(fails)
    with pytest.raises(UnsupportedError, match="depends on input 0"):
        model(x)
    assert type(once(8, 8)) is Tensor
    torch.testing.assert_close(once(8, 8), grid_of(8, 8))
