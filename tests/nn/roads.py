"""Roads that small blocks take only when they are told to."""

from __future__ import annotations

from contextlib import contextmanager

from gridwise.nn import pairs, single, upsampling


@contextmanager
def in_steps():
    """Small convolutions are made of several nodes of autograd too, as large ones are."""
    before, single.LARGE = single.LARGE, 0
    try:
        yield
    finally:
        single.LARGE = before


@contextmanager
def by_rows():
    """Small blocks are pooled by pairs and interpolated by whole rows too, as large ones are."""
    before = pairs.LEAST, upsampling.LEAST
    pairs.LEAST = upsampling.LEAST = 0
    try:
        yield
    finally:
        pairs.LEAST, upsampling.LEAST = before
