"""How stages are cut: pages that boxes touch, tiles that need most, and no work twice."""

from __future__ import annotations

import itertools
from mmap import PAGESIZE
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

import gridwise
from gridwise.grid import Box
from gridwise.operators.windows.convolution import ConvolutionOnBoxes
from gridwise.tiles.cone import boxes_of
from gridwise.tiles.cuts import middle, pages_of
from gridwise.tiles.footprint import footprint
from gridwise.tiles.schedule import SHARE_ON_CPU, Schedule


def schedule_of(model: Any, x: Tensor, memory: int) -> Schedule:
    big = gridwise.tiled(model, memory=memory, store="memory")
    big.plan(x, backward=torch.is_grad_enabled())
    return next(iter(type(big)._tiled_runners["forward"]._kept.values())).schedule


@given(st.data())
def test_pages_are_at_least_those_that_hold_an_element(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    ends = [sorted(data.draw(st.tuples(st.integers(0, n - 1), st.integers(1, n)))) for n in shape]
    box = Box.of_intervals([(a, max(a + 1, b)) for a, b in ends])
    touched = torch.arange(torch.Size(shape).numel()).view(shape)[box.slices] * 8 // PAGESIZE
    found = pages_of(shape, box, 8)
    assert 2 * found >= touched.unique().numel(), "where a run begins in a page is not counted"


def test_a_cut_through_rows_costs_more_pages_than_one_between_them() -> None:
    shape = (1, 16, 80, 80, 80)
    between, through = Box((0,) * 5, (1, 16, 10, 80, 80)), Box((0,) * 5, (1, 16, 80, 80, 10))
    assert pages_of(shape, through, 4) > 4 * pages_of(shape, between, 4)


def test_the_tile_in_the_middle_is_no_smaller_rest() -> None:
    assert middle((3,), (2,)) == Box((0,), (2,))
    assert middle((10,), (4,)) == Box((3,), (6,))


class Shifted(nn.Module):
    """Windows of a rolled picture, as in Swin: those at the ends are made of rows from both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        rolled = torch.roll(self.first(x), (-3, -3), (1, 2))
        return torch.roll(self.last(torch.relu(rolled)), (3, 3), (1, 2))


@torch.no_grad()
def test_no_tile_holds_more_than_planned_where_rows_wrap_around() -> None:
    model, x, memory = Shifted(), torch.rand(1, 96, 96, 8), 200_000
    schedule = schedule_of(model, x, memory)
    for stage in schedule.stages:
        boxes = boxes_of(stage.shape, stage.counts)
        assert max(footprint(stage, box, False) for box in boxes) <= memory * SHARE_ON_CPU
    big = gridwise.tiled(model, memory=memory, store="memory")
    torch.testing.assert_close(big(x), model(x), rtol=1e-5, atol=1e-6)


class Block(nn.Module):
    """A bottleneck with a sum, as in residual networks."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (32, 8, 1), (8, 8, 3), (8, 32, 1)
        parts = [(nn.Conv2d(a, b, k, padding=k // 2), nn.BatchNorm2d(b), nn.ReLU()) for a, b, k in sizes]
        self.body = nn.Sequential(*itertools.chain(*parts))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


@pytest.mark.parametrize("memory", [2_000_000, 6_000_000])
def test_stages_do_not_compute_what_others_compute(memory: int) -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *(Block() for _ in range(6))).eval()
    schedule = schedule_of(model, torch.rand(1, 3, 96, 96, requires_grad=True), memory)
    needed = sum(operation.flops for operation in schedule.graph.operations)
    assert len(schedule.stages) > 2
    assert sum(stage.least_flops for stage in schedule.stages) < 1.1 * needed


@pytest.mark.parametrize("dims", [2, 3])
def test_small_parts_of_large_inputs_are_convolved_by_the_kernel_of_the_whole(dims: int) -> None:
    """Torch would give them to one that is sixteen times slower; with gradients it still does."""
    convolve, space = (torch.conv2d, (256, 64)) if dims == 2 else (torch.conv3d, (64, 64, 8))
    x, weight, bias = torch.rand(1, 8, *space), torch.rand(8, 8, *(3,) * dims), torch.rand(8)
    operator = ConvolutionOnBoxes.of(tuple(x.shape), tuple(weight.shape), True, 1, 1, 1, 1)
    whole = convolve(x, weight, bias, padding=1)
    box = Box((0, 0, 8, *(0,) * (dims - 1)), (1, 8, 16, *space[1:]))
    need = operator.needs(box)[0]
    with torch.no_grad():
        assert operator.is_small_part(x[need.slices])
        assert not operator.is_small_part(x)
        assert not operator.is_small_part(x[need.slices].double())
        found = operator.run(box, x[need.slices], weight, bias)
    assert not operator.is_small_part(x[need.slices])
    torch.testing.assert_close(found, whole[box.slices], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(operator.run(box, x[need.slices], weight, bias), whole[box.slices], rtol=1e-5, atol=1e-5)
