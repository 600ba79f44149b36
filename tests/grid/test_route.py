"""Routes against the dense matrix that the workers' routes make together, and what they cost among 4,096 workers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from gridwise.errors import PartitionError
from gridwise.grid import Box, Grid, Interval, Layout, Needs, Route, route

from .strategies import cases, grids, layouts, needs

movements = st.integers(0, 3).flatmap(layouts).flatmap(lambda source: st.tuples(st.just(source), needs(source)))


def routes_of(source: Layout, needs: Needs) -> dict[int, Route]:
    stranger = 1000
    return {rank: route(source, needs, rank) for rank in {*source.grid.ranks, *needs.grid.ranks, stranger}}


def forward(source: Layout, routes: dict[int, Route], x: Any) -> tuple[dict[int, Any], dict[int, Any]]:
    """What each worker holds after the movement of `x`, and how often each element was written."""
    blocks = {rank: x[source.block(rank).slices] for rank in source.grid.ranks}
    values = {rank: np.full(r.needed.shape, -1) for rank, r in routes.items() if r.needed}
    writes = {rank: np.zeros(r.needed.shape, dtype=int) for rank, r in routes.items() if r.needed}
    for rank, r in routes.items():
        arriving = [(rank, r.kept), *((message.peer, message.pieces) for message in r.receives)]
        for owner, pieces in arriving:
            for piece in pieces:
                values[rank][piece.target.slices] = blocks[owner][piece.source.slices]
                writes[rank][piece.target.slices] += 1
    return values, writes


def adjoint(source: Layout, routes: dict[int, Route], y: dict[int, Any]) -> Any:
    """The same pieces sent back and added, seen from the owners' side."""
    x = np.zeros(source.global_shape, dtype=int)
    for rank, r in routes.items():
        leaving = [(rank, r.kept), *((message.peer, message.pieces) for message in r.sends)]
        for needer, pieces in leaving:
            for piece in pieces:
                x[piece.source.shifted(source.block(rank).start).slices] += y[needer][piece.target.slices]
    return x


def needed_indices(needs: Needs, rank: int, shape: tuple[int, ...]) -> Any:
    """The flat global index of every element that a worker needs: its rows of the dense matrix, in short."""
    box = needs.box(rank)
    flat = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    for d, (start, stop, extent) in enumerate(zip(box.start, box.stop, shape, strict=True)):
        flat = np.take(flat, np.arange(start, stop) % max(extent, 1) if stop > start else [], axis=d)
    return flat.reshape(box.shape)


@cases(300, movement=movements)
def test_every_needed_element_arrives_once_and_the_adjoint_is_the_transpose(movement: tuple[Layout, Needs]) -> None:
    source, needs = movement
    routes = routes_of(source, needs)
    shape = source.global_shape
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    values, writes = forward(source, routes, x)
    matrix, y = [np.zeros((0, x.size), dtype=int)], {}
    for rank in needs.grid.ranks:
        expected = needed_indices(needs, rank, shape)
        assert (writes[rank] == 1).all()
        assert np.array_equal(values[rank], expected)
        matrix.append(np.eye(x.size, dtype=int)[expected.ravel()])
        y[rank] = 1 + np.arange(expected.size).reshape(expected.shape) * (rank + 1)
    rows = np.concatenate([y[rank].ravel() for rank in needs.grid.ranks])
    assert np.array_equal(adjoint(source, routes, y).ravel(), np.concatenate(matrix).T @ rows)


@cases(100, movement=movements)
def test_both_sides_of_a_message_agree(movement: tuple[Layout, Needs]) -> None:
    source, needs = movement
    routes = routes_of(source, needs)
    sent = {(rank, m.peer): m.pieces for rank, r in routes.items() for m in r.sends}
    received = {(m.peer, rank): m.pieces for rank, r in routes.items() for m in r.receives}
    assert sent == received
    for rank, r in routes.items():
        assert r.owned == (source.block(rank) if rank in source.grid else None)
        assert r.needed == (needs.box(rank) if rank in needs.grid else None)
        for messages in (r.sends, r.receives):
            peers = [message.peer for message in messages]
            assert peers == sorted(set(peers) - {rank})
        for message in (*r.sends, *r.receives):
            assert message.volume == sum(piece.target.volume for piece in message.pieces)
            assert all(piece.source.shape == piece.target.shape for piece in message.pieces)
            assert all(piece.source.volume > 0 for piece in message.pieces)


@cases(100, movement=movements)
def test_exact_and_identity_mean_what_they_say(movement: tuple[Layout, Needs]) -> None:
    source, needs = movement
    routes = routes_of(source, needs)
    times = adjoint(source, routes, {rank: np.ones(needs.box(rank).shape, dtype=int) for rank in needs.grid.ranks})
    (exact,) = {r.exact for r in routes.values()}
    if exact:
        assert (times == 1).all()
    elif times.size and not any(needs.wrap):
        assert (times != 1).any()
    for r in routes.values():
        alone = r.owned == r.needed and (r.owned is None or bool((times[r.owned.slices] == 1).all()))
        assert r.is_identity == alone
        if r.is_identity and r.owned and r.owned.volume:
            whole = Box.of_shape(r.owned.shape)
            assert [(piece.source, piece.target) for piece in r.kept] == [(whole, whole)]


@cases(100, source=st.integers(0, 3).flatmap(layouts), data=st.data())
def test_a_repartition_is_exact_between_any_workers(source: Layout, data: st.DataObject) -> None:
    target = Layout.balanced(data.draw(grids(source.grid.dim)), source.global_shape)
    there = routes_of(source, Needs.of_layout(target))
    back = routes_of(target, Needs.of_layout(source))
    assert all(r.exact for r in (*there.values(), *back.values()))
    x = np.arange(np.prod(source.global_shape, dtype=int)).reshape(source.global_shape)
    moved, _ = forward(source, there, x)
    assert np.array_equal(adjoint(source, there, moved), x)
    sends = {
        (rank, m.peer, tuple((p.source, p.target) for p in m.pieces)) for rank, r in there.items() for m in r.sends
    }
    returns = {
        (m.peer, rank, tuple((p.target, p.source) for p in m.pieces)) for rank, r in back.items() for m in r.sends
    }
    assert sends == returns


@cases(100, movement=movements)
def test_bisection_finds_what_a_scan_of_the_axis_finds(movement: tuple[Layout, Needs]) -> None:
    source, needs = movement
    scanned = Needs(needs.grid, needs.intervals, needs.wrap)
    vars(scanned)["ordered"] = (False,) * needs.grid.dim
    assert routes_of(source, needs) == routes_of(source, scanned)


def test_a_wrap_several_times_round() -> None:
    source = Layout(Grid.line([5, 3]), ((0, 2, 3),))
    r = route(source, Needs(Grid.line([5]), (((-4, 5),),), (True,)), 5)
    assert [(p.source.start, p.target.start, p.source.shape) for p in r.kept] == [
        ((0,), (1,), (2,)),
        ((0,), (4,), (2,)),
        ((0,), (7,), (2,)),
    ]
    (message,) = r.receives
    assert (message.peer, [p.target.start for p in message.pieces]) == (3, [(0,), (3,), (6,)])


def test_a_scalar_moves_between_grids_without_axes() -> None:
    source, target = Layout(Grid((2,), ()), ()), Needs(Grid((7,), ()), (), ())
    (send,), (receive,) = route(source, target, 2).sends, route(source, target, 7).receives
    assert (send.peer, receive.peer, send.volume, send.pieces) == (7, 2, 1, receive.pieces)
    assert route(source, Needs.of_layout(source), 2).is_identity


def test_a_worker_may_be_alone_although_others_exchange_halos() -> None:
    source = Layout.balanced(Grid.line(range(3)), (6,))
    needs = Needs(source.grid, (((0, 2), (2, 5), (3, 6)),), (False,))
    first, middle = route(source, needs, 0), route(source, needs, 1)
    assert (first.exact, first.is_identity, middle.is_identity) == (False, True, False)


def test_an_empty_need_may_lie_anywhere() -> None:
    source = Layout.balanced(Grid.line(range(2)), (4,))
    r = route(source, Needs(source.grid, (((0, 4), (9, 9)),), (False,)), 1)
    assert (r.needed, r.receives, r.exact) == (Box((9,), (9,)), (), True)


@pytest.mark.parametrize(
    ("extent", "need", "wrap", "says"),
    [
        (4, (-1, 2), False, r"need \[-1, 2\) of dim 0, but the tensor has only \[0, 4\) there\."),
        (4, (2, 5), False, r"need \[2, 5\)"),
        (0, (0, 1), True, "nothing to wrap"),
        (0, (0, 1), False, r"only \[0, 0\)"),
    ],
)
def test_needs_outside_the_tensor_are_refused(extent: int, need: Interval, wrap: bool, says: str) -> None:
    source = Layout.balanced(Grid.line([0]), (extent,))
    with pytest.raises(PartitionError, match=says):
        route(source, Needs(source.grid, ((need,),), (wrap,)), 0)


def test_needs_that_do_not_fit_their_grid_are_refused() -> None:
    line = Grid.line(range(2))
    with pytest.raises(PartitionError, match="one interval for each place"):
        Needs(line, (((0, 1),),), (False,))
    with pytest.raises(PartitionError, match="one interval for each place"):
        Needs(line, (((0, 1), (1, 2)),), (False, False))
    with pytest.raises(PartitionError, match="cannot stop before it starts"):
        Needs(line, (((0, 1), (2, 1)),), (True,))
    with pytest.raises(PartitionError, match="from a grid of 2 axes to one of 1"):
        route(Layout.balanced(Grid((0,), (1, 1)), (2, 2)), Needs(line, (((0, 1), (1, 2)),), (False,)), 0)


def halos(layout: Layout, width: int, wrap: bool) -> Needs:
    own = Needs.of_layout(layout)
    wide = tuple(
        tuple((a - width, b + width) if wrap else (max(a - width, 0), min(b + width, extent)) for a, b in intervals)
        for intervals, extent in zip(own.intervals, layout.global_shape, strict=True)
    )
    return Needs(layout.grid, wide, (wrap,) * layout.grid.dim)


SQUARE = Layout.balanced(Grid(tuple(range(4096)), (64, 64)), (8192, 8192))
ROWS = Layout.balanced(Grid(tuple(range(4096)), (4096, 1)), (8192, 8192))
LINE = Layout.balanced(Grid.line(range(4096)), (40960,))
AMONG_4096 = {
    "square, halos": (SQUARE, halos(SQUARE, 2, wrap=False), 8),
    "square, circular": (SQUARE, halos(SQUARE, 2, wrap=True), 8),
    "line, halos": (LINE, halos(LINE, 1, wrap=False), 2),
    "line, circular": (LINE, halos(LINE, 1, wrap=True), 2),
    "square to rows": (SQUARE, Needs.of_layout(ROWS), 64),
    "rows to square": (ROWS, Needs.of_layout(SQUARE), 64),
}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often routes have asked for the spans of two intervals, and made a piece."""
    module = importlib.import_module("gridwise.grid.route")
    count = {"spans": 0, "_piece": 0}

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(module, name)

        def call(*args: Any) -> Any:
            count[name] += 1
            return original(*args)

        return call

    for name in count:
        monkeypatch.setattr(module, name, counted(name))
    return count


@pytest.mark.parametrize("rank", [0, 1, 63, 64, 2000, 4095])
@pytest.mark.parametrize("movement", AMONG_4096)
def test_a_route_among_4096_workers_lists_its_own_messages_only(
    steps: dict[str, int], movement: str, rank: int
) -> None:
    source, needs, most_messages = AMONG_4096[movement]
    r = route(source, needs, rank)
    assert max(len(r.sends), len(r.receives)) <= most_messages
    messages = (*r.sends, *r.receives)
    assert steps["_piece"] == sum(len(message.pieces) for message in messages) + 2 * len(r.kept)
    assert steps["spans"] <= len(messages) + 2 * (1 + source.grid.dim)


def test_needs_in_no_order_cost_one_look_along_each_axis(steps: dict[str, int]) -> None:
    (tiles,) = Needs.of_layout(LINE).intervals
    r = route(LINE, Needs(LINE.grid, (tiles[::-1],), (False,)), 7)
    assert ([message.peer for message in r.sends], r.exact) == ([4095 - 7], True)
    assert steps["spans"] == 4096 + 1
