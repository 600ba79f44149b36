"""Computing while messages are on their way: outputs that see only the own block first, the others when all has arrived.

    post the messages ──► interior, from the block itself ──► wait ──► boundary, from small boxes ──► put together

The messages are those of the plain road, so every worker decides by itself whether it overlaps: one without an interior
does not. Nor does a layer that torch pads (reflect, replicate), one that fetches channels, a transposed convolution,
adaptive pooling, or pooling that returns indices. No padded copy of the block is made at all. In backward the messages
come last.

`overlap(True)`, or `GRIDWISE_OVERLAP=on`, switches it on. What that gains and costs is in benchmarks/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from ...grid import Box, Interior, Window, interior_of
from ..engine.operator import Ticket
from ..engine.switch import Switch
from .fetch import Fetch
from .saved_input import Call, WindowInput
from .split_exchange import ForwardMessages, Split

LEAST_SHARE = 0.5
"""Which part of the outputs must be interior: with less, cutting the work up costs more than waiting."""

_switch = Switch("GRIDWISE_OVERLAP", "off")


def overlap(enabled: bool) -> AbstractContextManager[None]:
    """Let convolutions and pooling compute while halos are on their way, or not, while the body runs.

    Examples
    --------
    >>> with gridwise.nn.overlap(True):
    ...     pass  # training steps
    """
    return _switch.to(enabled)


def overlaps() -> bool:
    return _switch.on


class SplitOutputs:
    """How one worker's outputs are made in parts: the interior from its own block, the boundary from boxes."""

    def __init__(self, fetch: Fetch, interior: Interior, shift: Sequence[int]) -> None:
        """`shift` leads from what is fetched to the own block."""

        def with_channels(box: Box) -> Box:
            return Box((0, 0, *box.start), (*fetch.shape[:2], *box.stop))

        self.padding, self.slabs = interior.padding, interior.slabs
        boxes = [with_channels(box) for pair in interior.slabs for box in pair if box is not None]
        self.split = Split(fetch, with_channels(interior.sees).shifted(tuple(shift)), boxes)

    @classmethod
    def planned(cls, fetch: Fetch | None, windows: Sequence[Window] | None, outputs: Box | None) -> SplitOutputs | None:
        """The parts of `outputs`, which see what is fetched through `windows`; None where the plain road is taken."""
        if fetch is None or windows is None or outputs is None or not outputs.volume or fetch.stays is None:
            return None
        source, target = fetch.stays
        own = list(zip(target.start[2:], target.stop[2:], strict=True))
        interior = interior_of(windows, outputs.shape[2:], fetch.shape[2:], own)
        if interior is None or interior.share < LEAST_SHARE:
            return None
        return cls(fetch, interior, [a - b for a, b in zip(source.start, target.start, strict=True)])

    def begin(self, x: Tensor, ticket: Ticket, records: bool) -> SplitInput:
        """Post the messages; recorded by autograd on all workers if `records`."""
        return SplitInput(self, *self.split.begin(x, ticket, records))

    def put_together(self, inner: Tensor, boundary: Sequence[Tensor]) -> Tensor:
        """The outputs, from the interior and the slabs around it, the last dim first."""
        rest = list(boundary)
        for d, (before, after) in reversed(list(enumerate(self.slabs, 2))):
            last = [rest.pop()] if after is not None else []
            first = [rest.pop()] if before is not None else []
            inner = torch.cat([*first, inner, *last], d) if first or last else inner
        return inner


class SplitInput(WindowInput):
    """What this worker's outputs see, some of it still on its way."""

    def __init__(self, parts: SplitOutputs, own: Tensor, boxes: list[Tensor], exchange: ForwardMessages) -> None:
        super().__init__(own)
        self.parts, self.boxes, self.exchange = parts, boxes, exchange

    def computed(self, call: Call, padding: tuple[int, ...] = ()) -> Tensor:
        try:
            inner = call(self.x, self.parts.padding)
        finally:  # others wait for what was posted, whatever happens here
            self.exchange.finish()
        return self.parts.put_together(inner, [call(box, self.parts.padding) for box in self.boxes])
