"""Counting draws while another thread uses the generator."""

from __future__ import annotations

import threading
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from gridwise.deferred_init import deferred_init, materialize_tensor
from gridwise.deferred_init.random import draws, streams


def build() -> list[Tensor]:
    return [torch.empty(20).uniform_() for _ in range(3)]


def use_if_free() -> None:
    """Ask for the generator's state, unless that would have to wait for another thread."""
    if streams.GENERATOR_LOCK.acquire(blocking=False):
        torch.get_rng_state()
        streams.GENERATOR_LOCK.release()


class Interrupted(int):
    """A number of draws; every second time it is added to others, another thread runs between reading and writing."""

    turns = cycle([False, True])

    def __radd__(self, others: int) -> int:
        if next(self.turns):
            thread = threading.Thread(target=use_if_free)
            thread.start()
            thread.join()
        return others + int(self)


def test_another_thread_waits_until_the_draws_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw_count(*args: Any) -> draws.DrawCount:
        count = draws.draw_count(*args)
        assert count is not None
        return count._replace(draws=Interrupted(count.draws))

    torch.manual_seed(1)
    eager, end = build(), torch.get_rng_state()
    monkeypatch.setattr(streams, "draw_count", draw_count)
    torch.manual_seed(1)
    deferred = deferred_init(build)
    assert torch.equal(torch.get_rng_state(), end)
    assert all(torch.equal(materialize_tensor(a), b) for a, b in zip(deferred, eager, strict=True))
