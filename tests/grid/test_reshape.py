"""Blocks of a reshaped tensor against reshaping the whole of it, and grids against all others."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from gridwise.grid import Grid, Layout, balanced_cuts
from gridwise.grid.arrange import arranged, factorisations, layout_with_whole
from gridwise.grid.reshape import dim_groups, expressed, flattened_cuts, reshaped

from .strategies import cases


@st.composite
def reshapes(draw: DrawFn) -> tuple[Layout, tuple[int, ...]]:
    """A layout of few elements, and another shape for as many."""
    factors = draw(st.lists(st.sampled_from([1, 2, 2, 3, 5]), min_size=1, max_size=6))

    def shape() -> tuple[int, ...]:
        order = draw(st.permutations(factors))
        groups = draw(st.lists(st.integers(0, 2), min_size=len(order), max_size=len(order)))
        dims = [math.prod(f for f, g in zip(order, groups, strict=True) if g == k) for k in range(3)]
        return tuple(dims)

    before, after = shape(), tuple(draw(st.permutations(shape())))
    workers = draw(st.sampled_from([1, 2, 3, 4, 6]))
    grid = draw(st.sampled_from(list(factorisations(workers, len(before)))))
    cuts = tuple(
        (0, *sorted(draw(st.lists(st.integers(0, n), min_size=p - 1, max_size=p - 1))), n)
        for n, p in zip(before, grid, strict=True)
    )
    return Layout(Grid(tuple(range(workers)), grid), cuts), after


@cases(150, case=reshapes())
def test_blocks_of_both_shapes_hold_the_same_elements(case: tuple[Layout, tuple[int, ...]]) -> None:
    layout, after = case
    whole = torch.arange(math.prod(after))
    found = reshaped(layout, after, layout.grid.ranks)
    if found is None:
        return
    first, second = found
    assert first.global_shape == layout.global_shape
    assert second.global_shape == after
    for rank in layout.grid.ranks:
        mine = whole.reshape(first.global_shape)[first.block(rank).slices]
        theirs = whole.reshape(after)[second.block(rank).slices]
        assert torch.equal(mine.reshape(theirs.shape), theirs)


@cases(150, case=reshapes())
def test_groups_have_as_many_elements_on_both_sides(case: tuple[Layout, tuple[int, ...]]) -> None:
    before, after = case[0].global_shape, case[1]
    groups = dim_groups(before, after)
    assert [d for first, _ in groups for d in first] == list(range(len(before)))
    assert [d for _, second in groups for d in second] == list(range(len(after)))
    for first, second in groups:
        assert math.prod(before[d] for d in first) == math.prod(after[d] for d in second)


def test_what_is_expressed_is_the_line_again() -> None:
    for dims in ((6, 4), (2, 6), (2, 2, 3), (1, 8), (3,)):
        found = []
        for blocks in range(1, 7):
            line = balanced_cuts(math.prod(dims), blocks)
            cuts = expressed(line, dims)
            if cuts is not None:
                assert flattened_cuts(cuts) == line
                found.append(blocks)
        assert set(found) >= {n for n in range(1, 7) if dims[0] % n == 0}, "whole rows of the first dim at the least"


def test_windows_of_an_image_stay_where_they_are() -> None:
    """Swin: rows and columns in windows, on a grid that cuts both at a window's edge."""
    layout = Layout.balanced(Grid((0, 1, 2, 3), (1, 2, 2, 1)), (2, 14, 14, 96))
    found = reshaped(layout, (2, 2, 7, 2, 7, 96), layout.grid.ranks)
    assert found is not None
    assert found[0] == layout
    assert found[1].grid.shape == (1, 2, 1, 2, 1, 1)


def test_no_grid_has_a_smaller_largest_block() -> None:
    for extents in ((2, 16, 6), (1, 3, 7), (5, 5), (4,)):
        for workers in (1, 2, 4, 6):
            shape = arranged(extents, workers)

            def largest(grid: tuple[int, ...], extents: tuple[int, ...] = extents) -> int:
                return math.prod(-(-n // p) for n, p in zip(extents, grid, strict=True))

            assert largest(shape) == min(map(largest, factorisations(workers, len(extents))))


def test_whole_dims_are_whole() -> None:
    layout = Layout.balanced(Grid((0, 1, 2, 3), (1, 2, 2)), (3, 4, 6))
    found = layout_with_whole(layout, [1], layout.grid.ranks)
    assert found is not None
    assert (found.grid.shape[1], found.global_shape) == (1, (3, 4, 6))
    assert layout_with_whole(layout, [0], layout.grid.ranks) is layout
    assert layout_with_whole(layout, [0, 1, 2], layout.grid.ranks) is None
