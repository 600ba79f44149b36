"""Attention of blocks: batch, heads and queries are cut as in the output; keys and values come in one of two ways.

gathered    each worker gets the keys and values that its queries see, and calls torch's kernel
in turn     if keys and values are cut along their sequence as the queries are, and large: each worker attends to its
            own block, and then to one block after another of the others (`operators.streamed_attention`)

In turn, no worker ever holds more than one block besides its own. Backward fetches them again, and sends the gradient of
each block home, where those of all workers are added: the adjoint of fetching it.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...grid import Box, Interval, Layout, Needs, Shape
from ...grid.cuts import scaled
from ...nn.engine.agreement import key_of
from ...nn.engine.carrier import Move
from ...nn.engine.operator import Ticket, meet, prepare
from ...operators.attention import AttentionSpec
from ...operators.attention import attention as on_boxes
from ...operators.formats import wide
from ...operators.labels import numbered
from ...operators.on_grids import needs_of_blocks
from ...operators.pointwise import aligned
from ...operators.random.random_stream import Elements, RandomStream
from ...operators.streamed_attention import StreamedAttention
from ..movement import move_along
from ..placement import Cut, Replicated, Want
from .by_needs import on_blocks
from .call import Call, NothingCut, Placed
from .products import plain, target_of
from .table import rule

LARGE = 1 << 26
"""From so many bytes of keys and values on that a worker would gather, they come in turn."""


@rule("scaled_dot_product_attention")
def attention(call: Call) -> Placed:
    spec, local = AttentionSpec.of(call), on_boxes(call)
    batch = numbered("b", call.result.dim - 2)
    of_keys = batch if spec.group == 1 else [*batch[:-1], "g"]
    ends = [(batch, "l", "e"), (of_keys, "s", "e"), (of_keys, "s", "v")]
    operands = [
        [*aligned(lead, value.dim - 2), row, last] for (lead, row, last), value in zip(ends, call.tensors, strict=False)
    ]
    if spec.mask is not None:
        operands.append([*batch, "l", "s"][len(batch) + 2 - len(spec.mask) :])
    target = target_of(call, operands, [*batch, "l", "v"], ["v"])
    if target is None:
        if call.cut and not local.draws:
            raise NothingCut
        return on_blocks(call, local, None, [Replicated()] * len(call.tensors))
    wants: list[Want] = list(needs_of_blocks(local.needs, target))
    blocks = _blocks_of_keys(call, spec, target)
    if blocks is None:
        return on_blocks(call, local, target, wants)
    wants[1:3] = blocks
    in_turn = BlocksInTurn(call, spec, target, *blocks)
    run, received = plain(in_turn.run, call.tensors, wants), in_turn.received * call.result.dtype.itemsize
    return Placed(Cut(target), run, wants, draws=local.draws, moved=received)


def _blocks_of_keys(call: Call, spec: AttentionSpec, target: Layout) -> tuple[Layout, Layout] | None:
    """The layouts of keys and values if they are cut as the queries are, and worth fetching in turn; else None."""
    key, value = (call[name].layout for name in ("key", "value"))
    if key is None or value is None or key.cuts[:-1] != value.cuts[:-1]:
        return None
    if not (_is_cut_alike(spec, key, target) and _is_cut_alike(spec, value, target)):
        return None
    lead = math.prod(max(b - a for a, b in pairwise(cuts)) for cuts in key.cuts[:-2])
    numbers = lead * spec.key[-2] * (spec.key[-1] + spec.value[-1])
    return (key, value) if numbers * call.result.dtype.itemsize >= LARGE else None


def _is_cut_alike(spec: AttentionSpec, keys: Layout, target: Layout) -> bool:
    """Whether the workers along each axis have the same samples and heads, and along one axis parts of the sequence."""
    if keys.grid != target.grid or target.grid.shape[-2] == 1:
        return False
    heads = len(spec.key) - 3
    for d, (have, want) in enumerate(zip(keys.cuts[:-2], target.cuts[:-2], strict=True)):
        served = scaled(have, spec.group) if d == heads else have
        if served != want and len(want) > 2:
            return False
    return True


class BlocksInTurn:
    """One worker's part of attention whose keys and values come in turn."""

    def __init__(self, call: Call, spec: AttentionSpec, target: Layout, keys: Layout, values: Layout) -> None:
        self.spec, self.workers, self.name, self.dtype = spec, call.workers, call.name, call.result.dtype
        self.box = call.block(target)
        self.ticket = Ticket(key_of(call.name), 0)
        self.own = call.block(keys).start[-2]
        place, parts = target.grid.index_of(call.workers.rank)[-2], target.grid.shape[-2]
        rows, columns = list(pairwise(target.cuts[-2])), list(pairwise(keys.cuts[-2]))
        self.fetches: list[tuple[int, Move, Move]] = []
        """The first key of each block that comes, in turn, and what fetches the keys and the values."""
        for distance in range(1, parts):
            sources = [(i - distance) % parts for i in range(parts)]
            seen = [self._sees(rows[i], columns[j]) for i, j in enumerate(sources)]
            if not any(seen):
                continue
            intervals = [columns[j] if sees else (0, 0) for j, sees in zip(sources, seen, strict=True)]
            fetch_keys, fetch_values = (
                move_along(
                    layout,
                    Needs.of_layout(layout).along(len(layout.cuts) - 2, intervals),
                    call.workers,
                    f"the {what} at distance {distance} of {call.name}",
                )
                for what, layout in (("keys", keys), ("values", values))
            )
            self.fetches.append((intervals[place][0], fetch_keys, fetch_values))
        self.received = sum(each.incoming for _, *both in self.fetches for each in both)
        """How many elements come in all."""

    def _sees(self, rows: Interval, columns: Interval) -> bool:
        if rows[0] == rows[1] or columns[0] == columns[1]:
            return False
        return not self.spec.is_causal or rows[1] > columns[0]

    def run(self, *given: Any) -> Tensor:
        stream = given[0] if self.spec.drop else None
        q, k, v, *mask = given[1:] if self.spec.drop else given
        if stream is not None and stream.sequential:
            start, stop = (*self.box.start[:-1], 0), (*self.box.stop[:-1], self.spec.key[-2])
            elements = Elements(self.spec.weights, Box(start, stop))
            stream = DrawnAtOnce(stream, stream.kept(q, self.spec.drop, elements), start)
        attention = StreamedAttention(self.spec, self.box, stream)
        tensors = [x.to(self.dtype) if x.is_floating_point() else x for x in (q, k, v, *mask)]
        y: Tensor = _InTurn.apply(self, attention, *tensors, *[None] * (4 - len(tensors)))
        return y


@dataclass
class DrawnAtOnce:
    """Torch's own random numbers of the dropout of a box, which depend on how many were drawn before."""

    stream: RandomStream
    whole: Tensor
    origin: Shape

    def kept(self, x: Tensor, p: float, elements: Elements) -> Tensor:
        assert elements.block is not None
        return self.whole[elements.block.relative_to(Box(self.origin, self.origin)).slices]

    def scaled(self, x: Tensor, kept: Tensor, p: float) -> Tensor:
        return self.stream.scaled(x, kept, p)


class _InTurn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, turn: BlocksInTurn, attention: StreamedAttention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> Tensor:
        with _without_autocast(q.device.type):
            state = attention.start(q)
            attention.add(state, q, k, v, turn.own, _columns(mask, turn.own, k))
            for first, fetch_keys, fetch_values in turn.fetches:
                keys, values = fetch_keys(k), fetch_values(v)
                attention.add(state, q, keys, values, first, _columns(mask, first, keys))
            y, level = attention.finish(state)
        ctx.turn, ctx.attention = turn, attention
        prepare(ctx, q, k, v, mask, y.to(q.dtype), level)
        return y.to(q.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        turn, attention = ctx.turn, ctx.attention
        workers = turn.workers
        q, k, v, mask, y, level = meet(ctx, workers.transport, workers.team, turn.name, turn.ticket.differentiated())
        with _without_autocast(q.device.type):
            dy = wide(dy)
            delta, dq = (dy * wide(y)).sum(-1, keepdim=True), torch.zeros_like(wide(q))
            dmask = torch.zeros_like(wide(mask)) if ctx.needs_input_grad[5] else None

            def of_block(keys: Tensor, values: Tensor, first: int) -> tuple[Tensor, Tensor]:
                own = _columns(mask, first, keys), level, dy, delta, dq, _columns(dmask, first, keys)
                return attention.gradients(q, keys, values, first, *own)

            dk, dv = of_block(k, v, turn.own)
            for first, fetch_keys, fetch_values in turn.fetches:
                of_keys, of_values = of_block(fetch_keys(k), fetch_values(v), first)
                dk += fetch_keys.adjoint(of_keys)
                dv += fetch_values.adjoint(of_values)
        dk, dv = dk.to(k.dtype), dv.to(v.dtype)
        return None, None, dq.to(q.dtype), dk, dv, None if dmask is None else dmask.to(mask.dtype)


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """Products stay in the precision of their tensors."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _columns(mask: Tensor | None, first: int, keys: Tensor) -> Tensor | None:
    """The part of a mask for a block of keys."""
    return mask if mask is None or mask.shape[-1] == 1 else mask.narrow(-1, first, keys.shape[-2])
