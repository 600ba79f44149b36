"""Roads that small blocks take only when they are told to."""

from __future__ import annotations

from contextlib import contextmanager

from gridwise.nn import pairs, single


@contextmanager
def in_steps():
    """Convolutions of small blocks are made of several nodes of autograd too, as those of large ones are."""
    large, single.LARGE = single.LARGE, 0
    try:
        yield
    finally:
        single.LARGE = large


@contextmanager
def by_rows():
    """Small blocks are pooled by pairs too, as large ones are."""
    before, pairs.LEAST = pairs.LEAST, 0
    try:
        yield
    finally:
        pairs.LEAST = before
