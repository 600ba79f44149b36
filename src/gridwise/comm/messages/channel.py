"""A small exchange that is repeated: its buffers, and what the library needs to know about them, are made once.

    for part, view in zip(channel.outgoing, ...): part.copy_(view)
    channel.exchange()
    for part, view in zip(channel.incoming, ...): view.copy_(part)

The messages are those of `Transport.move`: the parts for one peer one after another, in one message. So one end may use
`move` and the other a channel. On the host only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ..transports.base import Parcel, Transport

Shapes = Sequence[tuple[int, ...]]


class Channel:
    """An exchange of parts of the given shapes, all of one dtype, with peers."""

    def __init__(
        self,
        transport: Transport,
        what: str,
        sends: Sequence[tuple[int, Shapes]],
        receives: Sequence[tuple[int, Shapes]],
        dtype: torch.dtype,
    ) -> None:
        self._transport = transport
        with torch.inference_mode(False):  # the buffers outlive the call that makes them
            out, self.outgoing = _buffers(sends, dtype)
            into, self.incoming = _buffers(receives, dtype)
        self._parcels = out, into  # kept alive: the library may hold only their addresses
        self._waiting = transport.waiting_for_messages(what, sends, receives)
        self._post = transport.poster(out, into) if sends or receives else None

    def exchange(self) -> None:
        """Send the contents of `outgoing`, and return when `incoming` has arrived."""
        if self._post is not None:
            self._transport.count(*self._parcels)
            with self._waiting:
                self._post().wait()

    def __deepcopy__(self, memo: dict) -> Channel:
        return self  # shared with the copy of a layer, which makes its own plans


def _buffers(messages: Sequence[tuple[int, Shapes]], dtype: torch.dtype) -> tuple[list[Parcel], list[Tensor]]:
    """A buffer for each peer, and the parts of all buffers."""
    parcels, views = [], list[Tensor]()
    for peer, shapes in messages:
        buffer = torch.empty(sum(map(prod, shapes)), dtype=dtype, device="cpu")
        parcels.append((peer, buffer))
        shares = buffer.split([prod(shape) for shape in shapes])
        views += [share.view(shape) for share, shape in zip(shares, shapes, strict=True)]
    return parcels, views
