"""Random cuts, grids, layouts, boxes and needs, small enough to check against dense arrays, and `cases` to run them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from gridwise.grid import Box, Cuts, Grid, Interval, Layout, Needs, cuts_from_extents

MOST_WORKERS = 10


def cases(examples: int, **arguments: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Run a check on `examples` random arguments, and on 50 times as many under the marker `soak`."""

    def decorate(check: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("times", [1, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
        def test(times: int) -> None:
            effort = settings(
                max_examples=examples * times, deadline=None, suppress_health_check=[HealthCheck.too_slow]
            )
            effort(given(**arguments)(check))()

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


@st.composite
def intervals(draw: DrawFn, low: int, high: int) -> Interval:
    start, stop = sorted(draw(st.tuples(*[st.integers(low, high)] * 2)))
    return start, stop


@st.composite
def boxes(draw: DrawFn, dim: int, low: int = -1, high: int = 4) -> Box:
    ends = [draw(intervals(low, high)) for _ in range(dim)]
    return Box(tuple(a for a, _ in ends), tuple(b for _, b in ends))


def cuts(blocks: int, most: int = 4) -> SearchStrategy[Cuts]:
    """Uneven cuts, empty blocks too."""
    return st.lists(st.integers(0, most), min_size=blocks, max_size=blocks).map(cuts_from_extents)


@st.composite
def grids(draw: DrawFn, dim: int) -> Grid:
    """A grid of at most `MOST_WORKERS`, whose ranks are neither contiguous nor in order."""
    shape: list[int] = []
    for _ in range(dim):
        shape.append(draw(st.integers(1, MOST_WORKERS // math.prod(shape))))
    ranks = draw(st.permutations(range(2 * MOST_WORKERS)))[: math.prod(shape)]
    return Grid(tuple(ranks), tuple(draw(st.permutations(shape))))


@st.composite
def layouts(draw: DrawFn, dim: int) -> Layout:
    grid = draw(grids(dim))
    return Layout(grid, tuple(draw(cuts(blocks)) for blocks in grid.shape))


@st.composite
def needs_along(draw: DrawFn, source: Cuts, places: int, wrap: bool) -> tuple[Interval, ...]:
    """Needs along one axis: a repartition, halos, or any intervals; those that wrap may go several times round."""
    extent = source[-1]
    kind = draw(st.sampled_from(["repartition", "halo", "anything", "in order"]))
    points = [0, *sorted(draw(st.lists(st.integers(0, extent), min_size=places - 1, max_size=places - 1))), extent]
    if len(source) == len(points) and draw(st.booleans()):
        points = list(source)
    tiles = tuple(pairwise(points))
    if kind == "repartition":
        return tiles
    low, high = (-2 * extent, 3 * extent) if wrap else (0, extent)
    if kind == "halo":
        left, right = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        return tuple((max(a - left, low), min(b + right, high)) for a, b in tiles)
    outside = st.integers(-9, 9).map(lambda start: (start, start))
    anything = draw(st.lists(intervals(low, high) | outside, min_size=places, max_size=places))
    return tuple(sorted(anything)) if kind == "in order" else tuple(anything)


@st.composite
def needs(draw: DrawFn, source: Layout) -> Needs:
    grid = draw(st.just(source.grid) | grids(source.grid.dim))
    wrap = tuple(draw(st.booleans()) for _ in grid.shape)
    along = zip(source.cuts, grid.shape, wrap, strict=True)
    return Needs(grid, tuple(draw(needs_along(*axis)) for axis in along), wrap)
