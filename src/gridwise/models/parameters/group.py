"""Parameters that are gathered in one message, and whose gradients are summed by blocks in one.

    gather    everyone sends its blocks to all others                                 receives (p-1)/p of the bytes
    sum       everyone sends each worker the parts of its gradients that lie in       receives (p-1)/p of the bytes
              that worker's blocks, and adds what it receives for its own

Each is the adjoint of the other. The sum is taken in the order of the workers, in float32 for half precision; on a narrower
wire, parts are rounded once before they are sent. It also counts the workers that have used each parameter: one that no
worker has used gets no gradient, as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...comm.graph_breaks import read_by_host
from ...comm.messages.packing import parts, put, volume
from ...comm.messages.requests import Request
from ...comm.messages.wire_dtypes import NARROW_FROM
from ...nn.engine.carrier import Move, PeerViews
from ...nn.parameters.blocks import Sharding
from ...operators.formats import HALVES, memory_format_of
from ..movement import move_along
from ..placement import Workers, everything


class GatherGroup:
    """The gather of several parameters of one dtype and device, and its adjoint; `nbytes` are those of all of them."""

    def __init__(self, workers: Workers, name: str, shardings: Sequence[Sharding], nbytes: int) -> None:
        self.workers, self.name, self.nbytes = workers, name, nbytes
        self.shapes = [sharding.shape for sharding in shardings]
        self.moves: list[Move] = [
            move_along(sharding.layout, everything(sharding.layout), workers, f"the gather of {name}")
            for sharding in shardings
        ]

    def begin(self, blocks: Sequence[Tensor], into: Sequence[Tensor] | None = None) -> tuple[Request, Sequence[Tensor]]:
        """Start to gather parameters: the request to wait for, and what will then hold them.

        That may be `into`, of which the blocks are views.
        """
        wholes = into or [
            torch.empty(shape, dtype=block.dtype, device=block.device, memory_format=memory_format_of(block))
            for shape, block in zip(self.shapes, blocks, strict=True)
        ]
        sends = by_peer([move.sends for move in self.moves], blocks)
        receives = by_peer([move.receives for move in self.moves], wholes)
        pending = self.workers.transport.move(
            [*sends.items()], [*receives.items()], blocks[0].dtype, self.moves[0].name
        )
        for move, block, whole in zip(self.moves, blocks, wholes, strict=True) if into is None else ():
            for source, target in move.kept:
                put(target(whole), source(block), add=False)
        return pending, wholes


def by_peer(messages: Sequence[Sequence[PeerViews]], tensors: Sequence[Tensor]) -> dict[int, list[Tensor]]:
    """The boxes of all tensors that make up the message of each peer."""
    found: dict[int, list[Tensor]] = {}
    for each, tensor in zip(messages, tensors, strict=True):
        for peer, views in each:
            found.setdefault(peer, []).extend(view(tensor) for view in views)
    return found


class BlockSum:
    """The sums of the gradients of a group over all workers, of which this one gets its blocks; begun when made."""

    def __init__(
        self,
        group: GatherGroup,
        gradients: Sequence[Tensor | None],
        blocks: Sequence[Tensor],
        wire: torch.dtype | None = None,
    ) -> None:
        workers, first = group.workers, blocks[0]
        self.nbytes, self._used, self._team = group.nbytes, [g is not None for g in gradients], workers.team
        nothing = first.new_zeros(())
        wholes = [nothing.expand(shape) if g is None else g for g, shape in zip(gradients, group.shapes, strict=True)]
        self.blocks = [torch.empty_like(block, requires_grad=False) for block in blocks]
        """This worker's blocks of the sums, once they are complete."""
        self._own = [[target(x) for _, target in move.kept] for move, x in zip(group.moves, wholes, strict=True)]
        narrows = wire is not None and first.is_floating_point() and group.nbytes >= NARROW_FROM
        carrier = wire if wire is not None and narrows and wire.itemsize < first.element_size() else first.dtype
        flags = [torch.tensor(self._used, dtype=carrier, device=first.device)] if len(blocks) > 1 else []
        self._heard: dict[int, list[Tensor]] = {workers.rank: [x for own in self._own for x in own] + flags}
        like, outgoing = self._heard[workers.rank], by_peer([move.receives for move in group.moves], wholes)
        sends, receives = [], []
        for peer in workers.team:
            if peer == workers.rank:
                continue
            if sent := [x.to(carrier) for x in outgoing.get(peer, ())] + flags:
                sends.append((peer, sent))
            if like:
                buffer = torch.empty(volume(like), dtype=carrier, device=first.device)
                self._heard[peer] = parts(buffer, like)
                receives.append((peer, self._heard[peer]))
        self._sent = sends
        name = f"the gradient of {group.name}"
        self._pending: Request | None = workers.transport.move(sends, receives, carrier, name)

    def wait(self) -> None:
        """Return when the blocks hold the sums."""
        if self._pending is None:
            return
        self._pending.wait()
        rows = [iter(self._heard[rank]) for rank in self._team if rank in self._heard]
        for block, own in zip(self.blocks, self._own, strict=True):
            if own:
                terms = [next(row) for row in rows]
                total = torch.empty_like(block, dtype=torch.float32) if block.dtype in HALVES else block
                total.copy_(terms[0])
                for term in terms[1:]:
                    total.add_(term)
                if total is not block:
                    block.copy_(total)
        self._counts = [next(row) for row in rows] if len(self.blocks) > 1 else []
        self._pending = None
        self._heard, self._sent, self._own = {}, [], []

    def gradients(self) -> list[Tensor | None]:
        """The block of each sum; None for a parameter that no worker has used."""
        self.wait()
        if all(self._used) or not self._counts or self._counts[0].is_meta:
            return list(self.blocks)
        counts = read_by_host(torch.stack([each.real.float() for each in self._counts]).sum(0).tolist)
        return [block if count else None for block, count in zip(self.blocks, counts, strict=True)]
