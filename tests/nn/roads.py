"""Roads that small convolutions take only when they are told to."""

from __future__ import annotations

from contextlib import contextmanager

from gridwise.nn import single


@contextmanager
def in_steps():
    """Small convolutions are made of several nodes of autograd too, as large ones are."""
    before, single.LARGE = single.LARGE, 0
    try:
        yield
    finally:
        single.LARGE = before
