"""Counting draws while other threads use the generator."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from gridwise.deferred_init import deferred_init, materialize_tensor
from gridwise.deferred_init.random import streams


def build() -> list[Tensor]:
    return [torch.empty(20).uniform_() for _ in range(3)]


def use_if_free() -> None:
    """Ask for the generator's state, unless that would have to wait for another thread."""
    if streams.ALONE.acquire(blocking=False):
        torch.get_rng_state()
        streams.ALONE.release()


def test_another_thread_waits_until_the_draws_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    eager, end = build(), torch.get_rng_state()

    mark_at = streams.Mark

    def interrupted(*args: Any) -> streams.Mark:
        mark = mark_at(*args)
        thread = threading.Thread(target=use_if_free)
        thread.start()
        thread.join()
        return mark

    monkeypatch.setattr(streams, "Mark", interrupted)
    torch.manual_seed(1)
    deferred = deferred_init(build)
    assert torch.equal(torch.get_rng_state(), end)
    assert all(torch.equal(materialize_tensor(a), b) for a, b in zip(deferred, eager, strict=True))
