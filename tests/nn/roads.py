"""Roads that layers take only when they are told to."""

from __future__ import annotations

from contextlib import contextmanager

from gridwise.nn.layers.conv_base import Conv
from gridwise.nn.layers.conv_transpose import ConvTranspose
from gridwise.nn.windows import saved_input


@contextmanager
def in_steps():
    """Every convolution is made of several nodes of autograd, as those are that one call of torch cannot make."""
    nodes = [(kind, kind._single_node) for kind in (Conv, ConvTranspose)]
    for kind, _ in nodes:
        kind._single_node = lambda *_: None
    try:
        yield
    finally:
        for kind, node in nodes:
            kind._single_node = node


@contextmanager
def keeping(nothing: bool):
    """No padded copy of a block is kept for backward, however small; or all are."""
    before, saved_input.LEAST = saved_input.LEAST, 0 if nothing else 1 << 60
    try:
        yield
    finally:
        saved_input.LEAST = before
