"""Slots: where views lie in them, made once for each shape, and forgotten when there are too many."""

from __future__ import annotations

import torch

from gridwise.comm.node import slots
from gridwise.comm.node.slots import Slots


def test_views_lie_one_after_the_other_in_their_slot_and_are_made_once():
    memory = torch.zeros(128, dtype=torch.uint8)
    both, views = Slots(memory, 64), [torch.empty(2, 3), torch.empty(4)]
    first, second = both.parts(1, torch.float32, views)
    assert (first.shape, second.shape) == ((2, 3), (4,))
    first.fill_(1.0)
    second.fill_(2.0)
    assert not memory[:64].any()
    assert both.bytes(1).view(torch.float32)[:10].tolist() == [1.0] * 6 + [2.0] * 4
    assert both.parts(1, torch.float32, views)[0] is first
    assert both.parts(0, torch.float32, views)[0] is not first
    assert both.parts(1, torch.int32, views)[0].dtype == torch.int32


def test_places_of_many_shapes_are_forgotten(monkeypatch):
    monkeypatch.setattr(slots, "MOST_PARTS", 3)
    both = Slots(torch.zeros(128, dtype=torch.uint8), 64)
    for size in range(1, 12):
        (part,) = both.parts(0, torch.uint8, [torch.empty(size)])
        assert part.shape == (size,)
        assert len(both._parts) <= 3
