"""Checks on values: the workers agree on them, and raise what the sequential model raises; tiles raise it too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise.comm.transports.base import Transport
from gridwise.errors import UnsupportedError
from gridwise.grid import Grid
from gridwise.models.placing import place
from gridwise.partition import CartesianPartition
from gridwise.testing import workers

from .checked_functions import (
    FUNCTIONS,
    Asked,
    asserted,
    branched,
    caught,
    checked_often,
    going_on,
    in_range,
    only_raising,
)
from .equality import compare_on_threads, recorded
from .of_functions import Of
from .threads import on_threads


def inputs() -> list[Tensor]:
    x = torch.rand(4, 6, generator=torch.Generator().manual_seed(1))
    bad, nan = x.clone(), x.clone()
    bad[3, 4], nan[3, 4] = -0.75, float("nan")  # both on the last worker
    return [x, bad, x, nan]


def outcome(function: Callable[[Tensor], Tensor], *args: Tensor) -> tuple[object, ...]:
    try:
        return None, function(*args)
    except (AssertionError, ValueError, RuntimeError) as error:
        return type(error), str(error), getattr(error, "low", None)


@workers(1, 2)
def test_all_raise_what_the_model_raises() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([gridwise.world().size, 1])
    for function in FUNCTIONS:
        model = gridwise.distribute(function, P_x)
        for x in inputs():
            part = gridwise.local_slice(P_x, x.shape)
            kind, *expected = outcome(function, x)
            got = outcome(model, x[part])
            if kind is None:
                assert got[0] is None, (function, got)
                torch.testing.assert_close(got[1], expected[0][part], equal_nan=True)
            else:
                assert got == (kind, *expected), function


@pytest.mark.parametrize("function", FUNCTIONS)
def test_tiled(function: Callable[[Tensor], Tensor]) -> None:
    model = gridwise.tiled(function, memory="64 MiB")
    for x in inputs():
        kind, *expected = outcome(function, x)
        got = outcome(model, x)
        assert got[0] is kind
        if kind is None:
            torch.testing.assert_close(got[1], expected[0], equal_nan=True)
        else:
            assert list(got[1:]) == expected


def test_skipped() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    x = inputs()[1]
    torch.testing.assert_close(gridwise.distribute(in_range, P_x, checks="skip")(x), x.sqrt(), equal_nan=True)
    torch.testing.assert_close(gridwise.distribute(asserted, P_x, checks="skip")(x), x)
    with pytest.raises(gridwise.errors.PartitionError, match="must be 'raise' or 'skip'"):
        gridwise.distribute(in_range, P_x, checks="never")


@pytest.mark.parametrize("grid", [(2, 1, 1, 1), (1, 1, 2, 2)])
def test_gradients_are_those_of_the_model(grid: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = Of(checked_often, net=nn.Sequential(nn.Conv2d(4, 4, 1), nn.Tanh())).double()
    x = torch.randn(4, 4, 6, 5, dtype=torch.float64, requires_grad=True)
    errors, program = compare_on_threads(model, [x], grid)
    assert max(errors.values()) < 1e-12, errors
    assert not program.report.gathers


def test_one_message_for_all_checks() -> None:
    model = Of(checked_often, net=nn.Tanh())
    recording, x = recorded(model, [torch.ones(4, 4, 6, 5)]), torch.ones(2, 4, 6, 5)
    calls: list[str] = []

    def count(transport: Transport) -> None:
        P = CartesianPartition(transport, Grid(tuple(range(transport.size)), (2, 1, 1, 1)))
        layout = gridwise.grid.Layout.balanced(P.geometry, (4, 4, 6, 5))
        program = place(recording, [layout], P)
        plain = transport.all_max
        transport.all_max = lambda array, team, what: (calls.append(what), plain(array, team, what))[1]  # type: ignore[method-assign]
        program({}, {}, [x])

    on_threads(2, count)
    assert len(calls) == 2  # one on each worker
    assert program_messages(recording) == 0


def program_messages(recording: Any) -> int:
    """All-reduces of the same model without its checks."""
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    return sum("the checks" in step.name for step in place(recording, [None], P).steps) - 1


def test_other_branches_are_refused() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    good, bad, *_ = inputs()
    with pytest.raises(UnsupportedError, match="needs the numbers of a tensor"):
        gridwise.distribute(branched, P_x)(good)
    model = gridwise.distribute(caught, P_x)
    torch.testing.assert_close(model(good), good)
    with pytest.raises(gridwise.errors.PartitionError, match="goes on otherwise"):
        model(bad)


def of_lists(x: torch.Tensor) -> torch.Tensor:
    assert [x.min()] != [x.max()]
    return x


def test_a_comparison_of_lists_that_asks_for_equality_is_no_check() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    with pytest.raises(UnsupportedError, match="needs the numbers of a tensor"):
        gridwise.distribute(of_lists, P_x)(torch.rand(2, 3))


def test_branches() -> None:
    yes, no = Asked(True), Asked(False)
    only_raising(yes, no)
    assert yes.found == [True, True]
    assert no.found == [False] * 4
    going_on(yes, no)
    assert yes.found[2:] == [None] * 3
    assert no.found[4:] == [None] * 3
