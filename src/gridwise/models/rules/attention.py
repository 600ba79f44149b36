"""Attention of blocks: batch, heads and queries are cut as in the output; keys and values come in one of two ways.

gathered    each worker gets the keys and values that its queries see, and calls torch's kernel
in turn     if keys and values are cut along their sequence as the queries are, and large: each worker attends to its
            own block, and then to one block after another of the others (`operators.streamed_attention`)

In turn, no worker ever holds more than one block besides its own. Under a causal mask, late queries see more keys than early
ones: then each worker attends to the first half of its own queries and the second half of those of its counterpart at the
other end of the sequence, which is the same work for all. Backward fetches them again, and sends the gradient of
each block home, where those of all workers are added: the adjoint of fetching it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from ...nn.engine.operator import CallId, meet, prepare
from ...operators.attention import AttentionSpec
from ...operators.attention import attention as on_boxes
from ...operators.formats import wide
from ...operators.labels import numbered
from ...operators.on_grids import needs_of_blocks
from ...operators.pointwise import aligned
from ...operators.random.random_stream import Elements, RandomStream
from ...operators.streamed_attention import StreamedAttention
from ..movement import move_along
from ..placement import Cut, Replicated, Want, with_dims
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
    queries = (
        with_dims(target, (*target.cuts[:-1], (0, spec.query[-1])))
        if spec.query[:-1] == target.global_shape[:-1]
        else None
    )
    in_turn = BlocksInTurn(call, spec, target, queries if spec.is_causal else None, *blocks)
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


@dataclass(frozen=True)
class Halves:
    """The first half of a worker's rows, which it keeps, and the second half of its counterpart's, which it fetches."""

    kept: int
    """How many rows are kept."""
    fetches: Sequence[Move]
    """What fetches rows of the queries, and of the output."""

    def taken(self, x: Tensor, which: int) -> list[Tensor]:
        return [x.narrow(-2, 0, self.kept), self.fetches[which](x)]

    def returned(self, parts: Sequence[Tensor], which: int) -> Tensor:
        """All rows of this worker, from what was made of those taken by it and by its counterpart."""
        kept, fetched = parts
        x: Tensor = self.fetches[which].adjoint(fetched)
        x.narrow(-2, 0, self.kept).copy_(kept)
        return x


QUERIES, OUTPUT = 0, 1


class BlocksInTurn:
    """One worker's part of attention whose keys and values come in turn; `queries` is given if their work is to be balanced."""

    def __init__(
        self, call: Call, spec: AttentionSpec, target: Layout, queries: Layout | None, keys: Layout, values: Layout
    ) -> None:
        self.spec, self.workers, self.name, self.dtype = spec, call.workers, call.name, call.result.dtype
        self.box = call.block(target)
        self.call_id = CallId(key_of(call.name), 0)
        self.own = call.block(keys).start[-2]
        place, parts = target.grid.index_of(call.workers.rank)[-2], target.grid.shape[-2]
        rows, columns = [[each] for each in pairwise(target.cuts[-2])], list(pairwise(keys.cuts[-2]))
        self.halves: Halves | None = None
        if queries is not None:
            middles = [(a + b + 1) // 2 if i != parts - 1 - i else b for i, ((a, b),) in enumerate(rows)]
            late = [(middle, b) for middle, ((_, b),) in zip(middles, rows, strict=True)][::-1]
            rows = [[(a, middle), other] for ((a, _),), middle, other in zip(rows, middles, late, strict=True)]
            moves = [
                self._along_rows(call, each, late, what) for each, what in ((queries, "queries"), (target, "output"))
            ]
            self.halves = Halves(middles[place] - rows[place][0][0], moves)
        self.boxes = [_with_rows(self.box, each) for each in rows[place]]
        """The parts of the output that this worker makes."""
        self.fetches: list[tuple[int, Move, Move]] = []
        """The first key of each block that comes, in turn, and what fetches the keys and the values."""
        for distance in range(1, parts):
            sources = [(i - distance) % parts for i in range(parts)]
            seen = [any(self._sees(each, columns[j]) for each in rows[i]) for i, j in enumerate(sources)]
            if not any(seen):
                continue
            intervals = [columns[j] if sees else (0, 0) for j, sees in zip(sources, seen, strict=True)]
            fetch_keys, fetch_values = (
                self._along_rows(call, layout, intervals, f"{what} at distance {distance}")
                for layout, what in ((keys, "keys"), (values, "values"))
            )
            self.fetches.append((intervals[place][0], fetch_keys, fetch_values))
        moves = [each for _, *both in self.fetches for each in both] + [*(self.halves.fetches if self.halves else ())]
        self.received = sum(each.incoming for each in moves)
        """How many elements come in all."""

    @staticmethod
    def _along_rows(call: Call, layout: Layout, rows: Sequence[Interval], what: str) -> Move:
        """The movement that gives the workers along the sequence these rows."""
        needs = Needs.of_layout(layout).along(len(layout.cuts) - 2, rows)
        return move_along(layout, needs, call.workers, f"the {what} of {call.name}")

    def _sees(self, rows: Interval, columns: Interval) -> bool:
        if rows[0] == rows[1] or columns[0] == columns[1]:
            return False
        return not self.spec.is_causal or rows[1] > columns[0]

    def run(self, *given: Any) -> Tensor:
        stream = given[0] if self.spec.drop else None
        q, k, v, *mask = given[1:] if self.spec.drop else given
        if stream is not None and stream.sequential:
            ends = [end for each in self.boxes for end in (each.start[-2], each.stop[-2])]
            hull = _with_rows(self.box, (min(ends), max(ends)))
            start, stop = (*hull.start[:-1], 0), (*hull.stop[:-1], self.spec.key[-2])
            elements = Elements(self.spec.weights, Box(start, stop))
            stream = DrawnAtOnce(stream, stream.kept(q, self.spec.drop, elements), start)
        attention = [StreamedAttention(self.spec, box, stream) for box in self.boxes]
        tensors = [x.to(self.dtype) if x.is_floating_point() else x for x in (q, k, v, *mask)]
        y: Tensor = _InTurn.apply(self, attention, *tensors, *[None] * (4 - len(tensors)))
        return y

    def taken(self, x: Tensor, which: int) -> list[Tensor]:
        """The rows of `boxes`, from those of this worker."""
        return [x] if self.halves is None else self.halves.taken(x, which)

    def returned(self, parts: Sequence[Tensor], which: int) -> Tensor:
        """The rows of this worker, from those of the `boxes` of all."""
        return parts[0] if self.halves is None else self.halves.returned(parts, which)


def _with_rows(box: Box, rows: Interval) -> Box:
    return Box((*box.start[:-2], rows[0], box.start[-1]), (*box.stop[:-2], rows[1], box.stop[-1]))


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
        ctx: Any,
        turn: BlocksInTurn,
        attention: Sequence[StreamedAttention],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        with _without_autocast(q.device.type):
            queries = turn.taken(q, QUERIES)
            states = [each.start(own) for each, own in zip(attention, queries, strict=True)]

            def add(keys: Tensor, values: Tensor, first: int) -> None:
                for each, state, own in zip(attention, states, queries, strict=True):
                    each.add(state, own, keys, values, first, _columns(mask, first, keys))

            add(k, v, turn.own)
            for first, fetch_keys, fetch_values in turn.fetches:
                add(fetch_keys(k), fetch_values(v), first)
            made = [each.finish(state) for each, state in zip(attention, states, strict=True)]
        outputs, levels = [y.to(q.dtype) for y, _ in made], [level for _, level in made]
        ctx.turn, ctx.attention = turn, attention
        prepare(ctx, k, v, mask, *queries, *outputs, *levels)
        return turn.returned(outputs, OUTPUT)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        turn, attention = ctx.turn, ctx.attention
        workers = turn.workers
        k, v, mask, *rest = meet(ctx, workers.transport, workers.team, turn.name, turn.call_id.differentiated())
        count = len(attention)
        queries, outputs, levels = rest[:count], rest[count : 2 * count], rest[2 * count :]
        with _without_autocast(k.device.type):
            dys = [wide(each) for each in turn.taken(dy, OUTPUT)]
            deltas = [(each * wide(y)).sum(-1, keepdim=True) for each, y in zip(dys, outputs, strict=True)]
            dqs = [torch.zeros_like(wide(q)) for q in queries]
            dmask = torch.zeros_like(wide(mask)) if ctx.needs_input_grad[5] else None

            def of_block(keys: Tensor, values: Tensor, first: int) -> list[Tensor]:
                found = []
                for each, q, *own in zip(attention, queries, levels, dys, deltas, dqs, strict=True):
                    masks = _columns(mask, first, keys), _columns(dmask, first, keys)
                    found.append(each.gradients(q, keys, values, first, masks[0], *own, masks[1]))
                return [sum(parts[1:], parts[0]) for parts in zip(*found, strict=True)]

            dk, dv = of_block(k, v, turn.own)
            for first, fetch_keys, fetch_values in turn.fetches:
                of_keys, of_values = of_block(fetch_keys(k), fetch_values(v), first)
                dk += fetch_keys.adjoint(of_keys)
                dv += fetch_values.adjoint(of_values)
            dq = turn.returned(dqs, QUERIES).to(queries[0].dtype)
        dk, dv = dk.to(k.dtype), dv.to(v.dtype)
        return None, None, dq, dk, dv, None if dmask is None else dmask.to(mask.dtype)


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """Products stay in the precision of their tensors."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _columns(mask: Tensor | None, first: int, keys: Tensor) -> Tensor | None:
    """The part of a mask for a block of keys."""
    return mask if mask is None or mask.shape[-1] == 1 else mask.narrow(-1, first, keys.shape[-2])
