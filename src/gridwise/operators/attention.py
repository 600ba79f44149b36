"""Scaled dot-product attention: batch, heads and queries follow the box; keys and values are whole along their sequence.

Queries attend to keys by their *global* rows: with `is_causal`, the queries up to row r need the first r keys. Heads of
keys and values that serve several heads of queries are those that the box's heads use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..grid import Box, Interval, Shape
from .call import OperatorCall
from .labels import kept
from .on_boxes import Local
from .random.random_stream import Elements, RandomStream
from .table import NotOnBoxes, operator


@dataclass(frozen=True)
class AttentionSpec:
    """One call of attention: the shapes of its global tensors, and how queries attend to keys."""

    query: Shape
    key: Shape
    value: Shape
    mask: Shape | None
    scale: float
    is_causal: bool
    group: int
    """How many consecutive heads of queries have the same keys and values."""
    drop: float

    @classmethod
    def of(cls, call: OperatorCall) -> AttentionSpec:
        query, key, value = (call[name].shape for name in ("query", "key", "value"))
        if min(len(query), len(key), len(value)) < 2:
            raise NotOnBoxes("attention of vectors")
        grouped = bool(call.given.get("enable_gqa")) and len(query) > 2
        if grouped and key[-3] != value[-3]:
            raise NotOnBoxes("attention with other heads of keys than of values")
        group = query[-3] // key[-3] if grouped else 1
        given = call.given.get("scale")
        scale = 1 / math.sqrt(query[-1]) if given is None else float(given)
        mask = None if call["attn_mask"] is None else call["attn_mask"].shape
        return cls(query, key, value, mask, scale, bool(call["is_causal"]), group, float(call["dropout_p"]))

    @property
    def weights(self) -> Shape:
        """The shape of the attention weights."""
        lead = torch.broadcast_shapes(self.query[:-2], self.key[:-2] if self.group == 1 else self.query[:-2])
        return (*lead, self.query[-2], self.key[-2])

    def keys_seen(self, box: Box) -> int:
        """How many keys the queries of a box of the output see."""
        return min(self.key[-2], box.stop[-2]) if self.is_causal else self.key[-2]

    def needs(self, box: Box) -> Sequence[Box]:
        """For a box of the output: the boxes of queries, keys, values, and of the mask if there is one."""
        seen = 0, self.keys_seen(box)
        lead = list(zip(box.start[:-2], box.stop[:-2], strict=True))
        rows = box.start[-2], box.stop[-2]
        heads = list(lead)
        if self.group > 1:
            heads[-1] = lead[-1][0] // self.group, (lead[-1][1] - 1) // self.group + 1
        found = [_part(self.query, [*lead, rows, (0, self.query[-1])])]
        found += [_part(shape, [*heads, seen, (0, shape[-1])]) for shape in (self.key, self.value)]
        return found if self.mask is None else [*found, _part(self.mask, [*lead, rows, seen])]

    def served(self, box: Box, x: Tensor) -> Tensor:
        """Keys or values, one head for each head of the box's queries."""
        if self.group == 1:
            return x
        first, stop = box.start[-3], box.stop[-3]
        return x.repeat_interleave(self.group, -3).narrow(-3, first % self.group, stop - first)


def _part(shape: Shape, intervals: Sequence[Interval]) -> Box:
    """The box of a tensor that broadcasts."""
    aligned = intervals[len(intervals) - len(shape) :]
    return Box.of_intervals((0, 1) if n == 1 else each for n, each in zip(shape, aligned, strict=True))


def causal_mask(rows: Interval, columns: Interval, device: torch.device) -> Tensor | None:
    """Which keys `columns` the queries `rows` see, by their global indices; None if all see all."""
    if rows[0] >= columns[1] - 1:
        return None
    return torch.arange(*rows, device=device)[:, None] >= torch.arange(*columns, device=device)


@operator("scaled_dot_product_attention")
def attention(call: OperatorCall) -> Local:
    spec = AttentionSpec.of(call)
    last = call.result.dim - 1
    flops = 4.0 * spec.key[-2]
    if spec.drop:
        return Local(spec.needs, lambda *given: kept(_dropped(spec, *given), given[1], [last]), flops, draws=True)

    def run(box: Box, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        k, v = spec.served(box, k), spec.served(box, v)
        rows = box.start[-2], box.stop[-2]
        is_causal = spec.is_causal and rows[0] == 0 and mask is None
        if spec.is_causal and not is_causal:
            mask = _both(causal_mask(rows, (0, k.shape[-2]), q.device), mask)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=spec.scale)
        return kept(y, box, [last])

    return Local(spec.needs, run, flops)


def _both(sees: Tensor | None, mask: Tensor | None) -> Tensor | None:
    if sees is None or mask is None:
        return mask if sees is None else sees
    return mask & sees if mask.dtype == torch.bool else mask.masked_fill(~sees, -math.inf)


def _dropped(
    spec: AttentionSpec, stream: RandomStream, box: Box, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> Tensor:
    """Attention with dropout, by the global indices of the attention weights."""
    k, v = spec.served(box, k), spec.served(box, v)
    scores = (q * spec.scale) @ k.transpose(-2, -1)
    seen = 0, k.shape[-2]
    mask = rest[0] if rest else None
    if spec.is_causal:
        mask = _both(causal_mask((box.start[-2], box.stop[-2]), seen, q.device), mask)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    shares = scores.softmax(-1)
    own = Box((*box.start[:-1], 0), (*box.stop[:-1], seen[1]))
    return stream.scaled(shares, stream.kept(shares, spec.drop, Elements(spec.weights, own)), spec.drop) @ v
