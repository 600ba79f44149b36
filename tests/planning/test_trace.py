"""Traces: what real workers did is what was planned, byte by byte; and nothing of it is left when it is over."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import programs
import pytest
import torch

import gridwise
from gridwise.comm.supervision.waiting import Waiting
from gridwise.errors import PartitionError
from gridwise.planning import read_trace
from gridwise.planning.tracing.comparison import compare
from gridwise.planning.tracing.perfetto import perfetto
from gridwise.planning.tracing.traced import Event, Traced
from gridwise.testing import workers


def folder_for_all() -> Path:
    transport = gridwise.world().transport
    own = tempfile.mkdtemp().encode() if transport.rank == 0 else b""
    return Path(transport.gather_bytes(own, transport.everyone)[0].decode())


@workers(2)
def test_what_is_sent_is_what_was_planned_layer_by_layer():
    world = gridwise.world()
    torch.manual_seed(0)
    make, shape, _ = programs.MODELS["net"]
    model, grid = make(), (1, 1, 2, 1)
    plan = gridwise.plan(model, grid, shape)
    P_x = world.create_cartesian_topology_partition(grid)
    placed, x = gridwise.distribute(model, P_x), gridwise.scatter(torch.ones(shape), P_x)
    placed(x)
    folder = folder_for_all()
    with gridwise.trace(folder, plan=plan) as traced:
        for _ in range(2):
            y = placed(x)
            y.backward(torch.ones_like(y))
    result = traced.result
    assert result.passes == 2
    rows = compare(plan, result)
    assert [row.sent[0] for row in rows] == [row.sent[1] for row in rows]
    assert [row.messages[0] for row in rows] == [row.messages[1] for row in rows]
    assert any(row.messages[0] for row in rows)
    for rank in range(2):
        assert result.bytes_sent(rank) == 2 * plan.worker(rank).sent
        assert result.messages_sent(rank) == 2 * plan.worker(rank).messages
    assert all(row.compute[1] > 0 for row in rows if row.layer == "first")
    if world.rank == 0:
        assert read_trace(folder) == result
        names = {path.name for path in folder.iterdir()}
        assert names == {"trace.txt", "trace.json", "events.json", "trace.html"}
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        starts = [event["id"] for event in events if event["ph"] == "s"]
        assert sorted(starts) == sorted(event["id"] for event in events if event["ph"] == "f")
        assert len(starts) == len(set(starts)) == sum(map(result.messages_sent, range(2)))
        assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {"worker 0", "worker 1"}


def fails_while_traced(folder, before):
    with gridwise.trace(folder):
        assert set(vars(gridwise.world().transport)) > before
        raise ZeroDivisionError


@workers(2)
def test_nothing_is_left_of_it():
    world = gridwise.world()
    transport = world.transport
    before, leave = set(vars(transport)), Waiting.__exit__
    folder = folder_for_all()
    with pytest.raises(ZeroDivisionError):
        fails_while_traced(folder, before)
    assert set(vars(transport)) == before
    assert Waiting.__exit__ is leave
    assert not list(folder.iterdir())
    assert gridwise.trace(folder).result is None


def test_one_at_a_time(tmp_path):
    with gridwise.trace(tmp_path), pytest.raises(PartitionError, match="traced already"):
        gridwise.trace(tmp_path).__enter__()


def waiting_pair() -> Traced:
    """Worker 1 comes a second late to a sum, and its message is waited for half a second."""
    first = (
        Event("sum", "norm", "forward", "a sum", 1.0, 1.2, (0, 1), 8),
        Event("message", "conv", "forward", "a halo", 3.0, 0.1, (1,), 0, ((1, 16),), ((1, 16),)),
        Event("message", "conv", "forward", "a halo", 3.5, 0.6, (1,)),
    )
    second = (
        Event("sum", "norm", "forward", "a sum", 2.0, 0.2, (0, 1), 8),
        Event("message", "conv", "forward", "a halo", 4.0, 0.1, (0,), 0, ((0, 16),), ((0, 16),)),
        Event("message", "conv", "forward", "a halo", 4.1, 0.1, (0,)),
    )
    return Traced((first, second), 1)


def test_waiting_is_what_passes_before_the_last_has_come():
    waits = waiting_pair().waits()
    assert waits[0, 0] == pytest.approx(1.0)
    assert waits[1, 0] == 0
    assert waits[0, 2] == pytest.approx(0.5)
    assert waits[1, 2] == 0
    assert "norm, forward" in str(waiting_pair())


def test_slices_are_in_microseconds():
    (slice,) = [e for e in perfetto(waiting_pair())["traceEvents"] if e["ph"] == "X" and e["ts"] == 1e6]
    assert slice["dur"] == pytest.approx(1.2e6)


def test_a_trace_that_is_none_is_an_error(tmp_path):
    (tmp_path / "events.json").write_text("[1]")
    with pytest.raises(PartitionError, match="cannot be read"):
        read_trace(tmp_path)
