"""THE transport of a process, on every transport."""

from __future__ import annotations

import torch

from gridwise.comm import find
from gridwise.testing import workers


@workers(1, 2, 3)
def test_current_is_the_world_of_the_task_and_always_the_same(gridwise_setting: tuple[str, int]) -> None:
    name, count = gridwise_setting
    transport = find.current()
    assert (transport.name, transport.size) == (name, count)
    assert find.current() is transport
    total = transport.all_sum(torch.tensor([float(transport.rank)]), transport.everyone)
    assert total.item() == sum(range(count))
