"""THE transport of a process, on every transport."""

from __future__ import annotations

import os

import torch

from gridwise.comm import find
from gridwise.errors import TransportError
from gridwise.testing import workers


@workers(1, 2, 3)
def test_current_is_the_world_of_the_task_and_always_the_same(gridwise_setting: tuple[str, int]) -> None:
    name, count = gridwise_setting
    transport = find.current()
    assert (transport.name, transport.size) == (name, count)
    assert find.current() is transport
    total = transport.all_sum(torch.tensor([float(transport.rank)]), transport.everyone)
    assert total.item() == sum(range(count))


@workers(2)
def test_a_forked_child_knows_its_rank_and_cannot_talk() -> None:
    transport = find.current()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            transport.all_sum(torch.ones(1), transport.everyone)
        except TransportError as error:
            os.write(write, f"{find.current().rank} {error}".encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 1000).decode()
    os.close(read)
    os.waitpid(child, 0)
    assert said.startswith(f"{transport.rank} a sum was called in a process that")
    transport.barrier()
