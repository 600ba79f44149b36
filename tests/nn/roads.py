"""Roads that layers take only when they are told to."""

from __future__ import annotations

from contextlib import contextmanager

from gridwise.nn.windows import conv_node, conv_part, saved_input
from gridwise.nn.windows.border_conv import BorderConv


@contextmanager
def in_steps():
    """Every convolution is made of several nodes of autograd, as those are that one call of torch cannot make."""
    one_of, conv_part.one_of = conv_part.one_of, lambda *_: None
    try:
        yield
    finally:
        conv_part.one_of = one_of


@contextmanager
def keeping(nothing: bool):
    """No padded copy of a block is kept for backward, however small; or all are."""
    before, saved_input.LEAST = saved_input.LEAST, 0 if nothing else 1 << 60
    try:
        yield
    finally:
        saved_input.LEAST = before


@contextmanager
def at_borders():
    """Convolutions of any block, on any device, make its borders apart; yields how many did, forward and backward."""
    taken = {"forward": 0, "backward": 0}
    kept = {name: getattr(BorderConv, name) for name in taken}

    def counted(name):
        def call(self, *args):
            taken[name] += 1
            return kept[name](self, *args)

        return call

    is_large, conv_node.is_large_on_device = conv_node.is_large_on_device, lambda x: True
    for name in taken:
        setattr(BorderConv, name, counted(name))
    try:
        yield taken
    finally:
        conv_node.is_large_on_device = is_large
        for name, call in kept.items():
            setattr(BorderConv, name, call)
