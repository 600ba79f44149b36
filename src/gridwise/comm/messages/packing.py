"""Messages: lists of views that are sent as one message, packed and unpacked without needless copies.

Both ends list views of the same shapes in the same order. A single contiguous view is sent or received in place; any other
message goes through one packed buffer. Arriving data are copied into the views or added to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Views = Sequence[Tensor]


def volume(views: Views) -> int:
    """The number of elements of the views together."""
    return sum([view.numel() for view in views])


def packed(views: Views) -> Tensor:
    """The views one after another in contiguous memory; a single contiguous view is returned as it is."""
    if len(views) == 1:
        return views[0].contiguous()
    buffer = torch.empty(volume(views), dtype=views[0].dtype, device=views[0].device)
    for view, part in zip(views, parts(buffer, views), strict=True):
        part.copy_(view)
    return buffer


def parts(buffer: Tensor, views: Views) -> list[Tensor]:
    """The parts of a packed buffer that belong to the views, each in its view's shape."""
    if len(views) == 1:
        return [buffer.view(views[0].shape)]
    shares = buffer.split([view.numel() for view in views])
    return [share.view(view.shape) for share, view in zip(shares, views, strict=True)]


@dataclass(slots=True)
class ReceiveBuffer:
    """The buffer in which a message arrives, and its destination `views`; none if the buffer is itself the destination."""

    buffer: Tensor
    views: Views
    add: bool

    @classmethod
    def of(cls, views: Views, dtype: torch.dtype, add: bool) -> ReceiveBuffer:
        if not add and len(views) == 1 and views[0].is_contiguous():
            return cls(views[0], (), add)
        return cls(torch.empty(volume(views), dtype=dtype, device=views[0].device), views, add)

    def put(self) -> None:
        """Copy or add the arrived data to the views."""
        if self.views:
            for view, part in zip(self.views, parts(self.buffer, self.views), strict=True):
                put(view, part, self.add)


def put(view: Tensor, part: Tensor, add: bool) -> None:
    """Copy `part` into `view`, or add it there."""
    if add:
        view.add_(part)
    else:
        view.copy_(part)


def chunks(views: Views, limit: int) -> Iterator[list[Tensor]]:
    """The views, cut into groups of at most `limit` elements; the same at both ends, as it depends only on shapes."""
    group: list[Tensor] = []
    room = limit
    for view in views:
        for piece in _cut(view, limit):
            if piece.numel() > room:
                yield group
                group, room = [], limit
            group.append(piece)
            room -= piece.numel()
    if group:
        yield group


def _cut(view: Tensor, limit: int) -> Iterator[Tensor]:
    if view.numel() <= limit:
        yield view
        return
    rows = limit // (view.numel() // view.shape[0])
    if rows:
        yield from view.split(rows)
    else:
        for row in view:
            yield from _cut(row, limit)
