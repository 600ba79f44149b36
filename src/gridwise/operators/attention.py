"""Scaled dot-product attention: batch, heads and queries follow the box; keys and values are whole along their sequence.

Queries attend to keys by their *global* rows: with `is_causal`, the queries up to row r need the first r keys. Heads of
keys and values that serve several heads of queries are those that the box's heads use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..grid import Box, Interval, Shape
from ..torch_internals.operators import is_flash_attention, safe_softmax
from .call import OperatorCall
from .labels import kept
from .on_boxes import Local
from .random.random_stream import Elements, RandomStream
from .table import NotOnBoxes, operator

AT_ONCE = 256
"""Torch's kernel on a CPU multiplies later values, up to this number, by zero: what is not finite remains."""


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
        if call["is_causal"] and call["attn_mask"] is not None:
            raise NotOnBoxes("causal attention with a mask, which torch refuses")
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

    @property
    def skips_later_keys(self) -> bool:
        """Whether keys after a query are left out, whatever they are.

        Torch's fused kernels do so; where it has none, it adds -inf to their scores, and NaN stays NaN.
        """
        lead = (*self.query[:-3], self.query[-3] // self.group) if len(self.query) > 2 else ()
        is_fused = (
            len(self.query) == 4 and self.key[:-2] == self.value[:-2] == lead and self.query[-1] == self.value[-1]
        )
        return self.is_causal and not self.drop and is_fused

    def keys_seen(self, box: Box) -> int:
        """How many keys the queries of a box of the output need."""
        return min(self.key[-2], -(-box.stop[-2] // AT_ONCE) * AT_ONCE) if self.skips_later_keys else self.key[-2]

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

    def gathered(self, box: Box, y: Tensor, shape: Shape) -> Tensor:
        """The adjoint of `served` and of broadcasting to the box's batch: sums over what shares a head or sample."""
        if self.group > 1:
            heads = shape[-3] * self.group
            first = box.start[-3] % self.group
            y = F.pad(y, (0, 0, 0, 0, first, heads - first - y.shape[-3]))
            y = y.unflatten(-3, (-1, self.group)).sum(-3)
        return y.sum_to_size(shape)


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
        if not spec.is_causal:
            q, k, v = map(_in_rows, (q, k, v))
        is_causal = spec.is_causal and box.start[-2] == 0
        if spec.is_causal and not is_causal:
            mask = causal_mask((box.start[-2], box.stop[-2]), (0, k.shape[-2]), q.device)
            if mask is not None and _is_overwritten(q, k, v):
                first, rows = box.start[-2], box.shape[-2]
                q = F.pad(q, (0, 0, first, 0))  # as the kernel sees them: what it makes of a NaN depends on the CPU
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=spec.scale)
                return kept(y.narrow(-2, first, rows), box, [last])
        return kept(F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=spec.scale), box, [last])

    return Local(spec.needs, run, flops)


def _in_rows(x: Tensor) -> Tensor:
    """With its last dim in a row of memory, without which torch's kernels make all weights of the attention."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _is_overwritten(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch's causal attention overwrites the scores of later keys, and it matters: it adds -inf elsewhere."""
    if q.device.type != "cpu" or torch.compiler.is_compiling() or not (q.numel() and k.numel()):
        return False  # nothing is asked on a device, for which the host would wait
    return is_flash_attention(q, k, v, True) and not bool(q.isfinite().all() & k.isfinite().all())


def _dropped(
    spec: AttentionSpec, stream: RandomStream, box: Box, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Attention with dropout, by the global indices of the attention weights."""
    k, v = spec.served(box, k), spec.served(box, v)
    scores = (q * spec.scale) @ k.transpose(-2, -1)
    seen = 0, k.shape[-2]
    if spec.is_causal:
        mask = causal_mask((box.start[-2], box.stop[-2]), seen, q.device)
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)
        scores = scores + mask
    shares = scores.softmax(-1) if mask is None else safe_softmax(scores, -1)  # zeros where all is hidden
    own = Box((*box.start[:-1], 0), (*box.stop[:-1], seen[1]))
    return stream.scaled(shares, stream.kept(shares, spec.drop, Elements(spec.weights, own)), spec.drop) @ v
