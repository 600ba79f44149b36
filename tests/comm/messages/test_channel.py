"""Messages with buffers of their own are those of any other movement, and are understood by a peer who moves views."""

from __future__ import annotations

import torch

import gridwise
from gridwise.comm.messages.channel import Channel
from gridwise.testing import workers

SHAPES = [(2, 3), (4,)]


def parts_of(rank, number):
    return [torch.arange(6.0).view(2, 3) + 100 * rank + number, torch.arange(4.0) - 100 * rank - number]


def load(channel, number):
    for part, value in zip(channel.outgoing, parts_of(gridwise.world().rank, number), strict=True):
        part.copy_(value)


def check(parts, number):
    for part, value in zip(parts, parts_of(1 - gridwise.world().rank, number), strict=True):
        assert torch.equal(part, value)


def channel_to_the_other():
    there = [(1 - gridwise.world().rank, SHAPES)]
    return Channel(gridwise.world().transport, "a test", there, there, torch.float32)


@workers(2)
def test_a_channel_carries_new_values_each_time():
    channel = channel_to_the_other()
    for number in range(3):
        load(channel, number)
        channel.exchange()
        check(channel.incoming, number)


@workers(2)
def test_the_other_end_may_move_views():
    world = gridwise.world()
    if world.rank == 0:
        channel = channel_to_the_other()
        load(channel, 0)
        channel.exchange()
        found = channel.incoming
    else:
        found = [torch.zeros(shape) for shape in SHAPES]
        world.transport.move([(0, parts_of(1, 0))], [(0, found)], torch.float32).wait()
    check(found, 0)


@workers(3)
def test_a_channel_may_go_one_way_or_nowhere():
    world = gridwise.world()
    sends, receives = ([(1, [(3,)])], []) if world.rank == 0 else ([], [(0, [(3,)])] if world.rank == 1 else [])
    channel = Channel(world.transport, "a test", sends, receives, torch.int16)
    for part in channel.outgoing:
        part.copy_(torch.tensor([1, 2, 3]))
    channel.exchange()
    assert [part.tolist() for part in channel.incoming] == ([[1, 2, 3]] if world.rank == 1 else [])
