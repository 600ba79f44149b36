"""Roads that small blocks take only when they are told to."""

from __future__ import annotations

from contextlib import contextmanager

from gridwise.nn.windows import conv_node, max_pool_by_two


@contextmanager
def in_steps():
    """Convolutions of small blocks are made of several nodes of autograd too, as those of large ones are."""
    large, conv_node.LARGE = conv_node.LARGE, 0
    try:
        yield
    finally:
        conv_node.LARGE = large


@contextmanager
def by_rows():
    """Small blocks are pooled by pairs too, as large ones are."""
    before, max_pool_by_two.LEAST = max_pool_by_two.LEAST, 0
    try:
        yield
    finally:
        max_pool_by_two.LEAST = before
