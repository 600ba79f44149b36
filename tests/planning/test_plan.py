"""Plans: the ledger says, entry by entry, what real workers send."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import numpy as np
import programs
import pytest
import torch

import gridwise
from gridwise.comm.transports.base import Transport
from gridwise.comm.transports.counting import CountingTransport, Entry, Ledger
from gridwise.deferred_init import deferred_init
from gridwise.errors import PartitionError
from gridwise.planning import count
from gridwise.testing import workers

COUNTED = ("_post", "_all_sum", "_post_sum", "_sum_to", "_copy_from", "_all_max")


@contextmanager
def listened(transport: Transport) -> Iterator[list[Entry]]:
    """Everything that the real `transport` is asked to send in the body, in the words of a ledger: by messages alone."""
    ledger = Ledger(transport.size)
    shadow = CountingTransport(ledger, transport.rank)

    def both(name: str) -> Any:
        real, counted = getattr(transport, name), getattr(shadow, name)

        def call(self: Transport, *args: Any) -> Any:
            shadow.waiting = transport.waiting
            counted(*(x.copy() if isinstance(x, np.ndarray) else x for x in args))
            return real(*args)

        return MethodType(call, transport)

    node, transport.node = transport.node, None
    try:
        for name in COUNTED:
            setattr(transport, name, both(name))
        yield ledger.entries[transport.rank]
    finally:
        transport.node = node
        for name in COUNTED:
            delattr(transport, name)


def plainly(entries: list[Entry]) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    return [(e.what, e.kind, e.peers, e.nbytes, e.received) for e in entries]


@workers(4, transports=["gloo"])
@pytest.mark.parametrize("grid", [(1, 1, 2, 2), (4, 1, 1, 1), (1, 2, 1, 2)])
@pytest.mark.parametrize("name", programs.MODELS)
def test_a_plan_is_what_real_workers_send_call_by_call(name, grid):
    transport = gridwise.world().transport
    P_x = gridwise.world().create_cartesian_topology_partition(grid)
    make, shape, loss = programs.MODELS[name]
    model = make()
    placed = gridwise.distribute(model, P_x)
    x = gridwise.scatter(torch.randn(shape), P_x)
    with listened(transport) as entries:
        y = placed(x)
        loss(placed.P_y, y).backward()
    messages = {"message", "receipt"} if max(grid[1:]) > 1 or name == "tokens" else set()
    assert {entry.kind for entry in entries} == messages | {"sum", "control"}
    planned = b""
    if transport.rank == 0:  # one plan for all: the others would only make it again
        ledger = gridwise.plan(model, grid, shape, loss=loss).ledger
        planned = pickle.dumps({rank: plainly(each) for rank, each in ledger.entries.items()})
    told = transport.gather_bytes(planned, transport.everyone)
    assert pickle.loads(told[0])[transport.rank] == plainly(entries)


@workers(4, transports=["gloo"])
def test_layers_made_by_hand_are_counted_call_by_call():
    transport = gridwise.world().transport
    with listened(transport) as entries:
        programs.by_hand(gridwise.world(), "cpu", ask=False)
    assert {entry.kind for entry in entries} == {"message", "receipt", "sum", "copy", "control"}
    ledger = count(lambda P_world: programs.by_hand(P_world, "meta"), 4)
    assert plainly(ledger.entries[transport.rank]) == plainly(entries)


@pytest.fixture(scope="module")
def planned():
    model = deferred_init(programs.Net)
    return gridwise.plan(model, (1, 1, 2, 2), programs.INPUT, loss=programs.mse)


def test_memory_is_that_of_the_blocks(planned):
    weights = sum(t.nbytes for t in (*programs.Net().parameters(), *programs.Net().buffers()))
    assert [worker.parameters for worker in planned.workers] == [weights] * 4  # space is cut, parameters are not
    assert [worker.gradients for worker in planned.workers] == [sum(p.nbytes for p in programs.Net().parameters())] * 4
    blocks = [8 * 5 * rows * columns * 4 for rows in (8, 7) for columns in (9, 9)]  # what `first` makes
    assert all(worker.activations > block for worker, block in zip(planned.workers, blocks, strict=True))
    assert all(worker.memory > worker.parameters + worker.activations for worker in planned.workers)


def test_what_is_sent_is_received(planned):
    sent = sum(planned.ledger.bytes_sent(rank, "message") for rank in range(4))
    assert (
        sent == sum(worker.received for worker in planned.workers) == sum(map(planned.ledger.bytes_received, range(4)))
    )
    halo = [
        entry
        for entry in planned.ledger.entries[0]
        if entry.what.startswith("conv2d in first") and entry.kind == "message"
    ]
    assert [entry.nbytes for entry in halo] == [
        4 * 5 * 3 * n for n in (10 * 2, 2 * 11, 2 * 2)
    ]  # of a padded block of 10 x 11


def test_it_prints_workers_and_layers(planned):
    text = str(planned)
    for part in ("1 x 1 x 2 x 2 workers", "activations", "sent per step", "balance", "gradients: first.weight"):
        assert part in text
    assert [row.name for row in planned.layers[:3]] == ["first", "norm", "second"]
    by_name = {row.name: row for row in planned.layers}
    assert by_name["first"].backward == 0  # nobody asks for the input's gradient
    assert by_name["norm"].backward > 0
    assert 0 < planned.balance() <= 1
    assert "about" not in text  # every worker was run


def test_what_cannot_be_planned_is_an_error():
    with pytest.raises(PartitionError, match="an axis for each dim"):
        gridwise.plan(torch.nn.ReLU(), (1, 2), (1, 1, 4))
    with pytest.raises(PartitionError, match="cannot take a global input of shape"):
        gridwise.plan(programs.Net(), (1, 1, 2, 2), (1, 4, 15, 18))
    with pytest.raises(PartitionError, match="`loss` must return a tensor"):
        gridwise.plan(programs.Net(), (1, 1, 2, 2), programs.INPUT, loss=lambda P_y, y: 3.0)


class TwoInputs(torch.nn.Module):
    def forward(self, x, y):
        return x + y


class Odd(torch.nn.Module):
    def forward(self, x):
        return x.view(-1, 7) * 2


def test_errors_are_in_our_words():
    """Without torch.fx's, about the code that it generates."""
    with pytest.raises(PartitionError, match=r"`model` .* is no torch\.nn\.Module"):
        gridwise.plan(lambda x: x, (1, 2), (4, 4))
    with pytest.raises(PartitionError, match=r"`dtype` .* is no torch\.dtype"):
        gridwise.plan(torch.nn.ReLU(), (1, 2), (4, 4), dtype="float32")
    with pytest.raises(PartitionError, match="missing a required argument: 'y'"):
        gridwise.plan(TwoInputs(), (1, 2), (4, 4))
    with pytest.raises(
        PartitionError, match=r"invalid for input of size 16  test_plan\.py:\d+, in forward:  return x\.view"
    ):
        gridwise.plan(Odd(), (2, 1), (4, 4))


@pytest.mark.parametrize("grid", [4, (1, 1, 0, 1), (1, 1, -2, 1), (1, 1, 1.5, 1), "1121", None])
def test_a_grid_is_of_whole_numbers(grid):
    with pytest.raises(PartitionError, match=r"`grid` .* must be a sequence of whole numbers, none less than 1"):
        gridwise.plan(torch.nn.Conv2d(3, 8, 3), grid, (2, 3, 16, 16))


@pytest.mark.parametrize("shape", [(2, 3, 16.7, 16), (2, 3, -1, 16), 4])
def test_an_input_is_of_whole_numbers(shape):
    with pytest.raises(PartitionError, match=r"`input_shape` .* must be a sequence of whole numbers"):
        gridwise.plan(torch.nn.Conv2d(3, 8, 3), (1, 1, 2, 1), shape)


@pytest.mark.parametrize(("workers", "problem"), [([], "names no worker"), ([0.5], "`workers` .* whole numbers")])
def test_workers_to_run_are_some_of_the_grid(workers, problem):
    with pytest.raises(PartitionError, match=problem):
        gridwise.plan(torch.nn.Conv2d(3, 8, 3), (1, 1, 2, 1), (2, 3, 16, 16), workers=workers)


def test_a_worker_that_was_not_run_is_not_made_up():
    planned = gridwise.plan(torch.nn.ReLU(), (1, 4), (4, 4), workers=[0, 3])
    assert planned.worker(3).rank == 3
    with pytest.raises(PartitionError, match="worker 1 was not run"):
        planned.worker(1)


def test_several_outputs_are_counted_without_a_loss():
    planned = gridwise.plan(programs.Several(), (1, 1, 2, 2), (5, 3, 12, 16))
    assert all(worker.sums for worker in planned.workers)  # of the gradients


def test_a_picture(planned, tmp_path):
    pytest.importorskip("matplotlib")
    gridwise.show.planned(planned, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 10_000


def test_a_picture_of_some_workers_and_of_nothing_sent():
    pytest.importorskip("matplotlib")
    figure = gridwise.show.planned(gridwise.plan(torch.nn.ReLU(), (4, 1), (4, 4), workers=[0, 3]))
    assert figure.get_suptitle().endswith("on 4 workers (2 of them run)")
    assert [text.get_text() for text in figure.axes[2].texts] == ["nothing is sent"]
    assert figure.axes[0].images[0].get_clim() == (0, 1)
