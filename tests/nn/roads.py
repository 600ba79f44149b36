"""Roads that small blocks take only when they are told to."""

from __future__ import annotations

from contextlib import contextmanager

from gridwise.nn import pairs, single, upsampling
from gridwise.nn.added import Addition


@contextmanager
def in_steps():
    """Convolutions are made of several nodes of autograd, as those are that one call of torch cannot make."""
    planned, Addition.planned = Addition.planned, lambda *_: None
    try:
        with adding():
            yield
    finally:
        Addition.planned = planned


@contextmanager
def adding(small_too: bool = True):
    """Small blocks are added up too, as large ones are; gives the list of calls that did."""
    large, single.LARGE = single.LARGE, 0 if small_too else single.LARGE
    convolved, done = Addition.convolved, []
    Addition.convolved = lambda addition, *args: done.append(addition) or convolved(addition, *args)
    try:
        yield done
    finally:
        single.LARGE, Addition.convolved = large, convolved


@contextmanager
def padding_all():
    """Large blocks are padded too, as small ones are."""
    large, single.LARGE = single.LARGE, 1 << 40
    try:
        yield
    finally:
        single.LARGE = large


@contextmanager
def by_rows():
    """Small blocks are pooled by pairs and interpolated by whole rows too, as large ones are."""
    before = pairs.LEAST, upsampling.LEAST
    pairs.LEAST = upsampling.LEAST = 0
    try:
        yield
    finally:
        pairs.LEAST, upsampling.LEAST = before
