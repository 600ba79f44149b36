"""Attention whose keys and values come block by block: exact, whatever the blocks, and no more of them than one at once.

For queries q and a block of keys k and values v, with scores s = scale q k' + mask:

    m <- max(m, s)     l <- l e^(m_old - m) + sum e^(s - m)     o <- o e^(m_old - m) + e^(s - m) v
    y = o / l          L = m + log l                            a query that sees no key has y = 0

In backward, with p = e^(s - L) and delta = sum(dy y), a block of keys gives

    dv = p' dy         ds = p (dy v' - delta)         dq += scale ds k         dk = scale ds' q

Dropout multiplies p by 0 or 1 / (1 - drop), by the global index of a query and a key. Blocks are computed in pieces, so
that few scores are held at once; pieces that a causal mask hides are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..grid import Box, Interval
from .attention import AttentionSpec, causal_mask
from .formats import wide
from .random.random_stream import Elements, RandomStream

SCORES, ROWS, COLUMNS = 1 << 18, 64, 256
"""The most scores that are held at once, unless these are fewer queries of each head; and the most keys."""
PLANNED = 16
"""About how many pieces of a block are computed without numbers."""


@dataclass
class RunningAttention:
    """Of each query: the largest score so far, the sum of exponentials, and the weighted sum of values."""

    largest: Tensor
    total: Tensor
    weighted: Tensor


@dataclass(frozen=True)
class StreamedAttention:
    """The attention of the queries of one box of the output.

    Parameters
    ----------
    spec : the whole call
    box : the box of the output: its batch, heads and queries
    stream : the random numbers of dropout
    """

    spec: AttentionSpec
    box: Box
    stream: RandomStream | None = None

    def start(self, q: Tensor) -> RunningAttention:
        """The state before the first block."""
        q = wide(q)
        lead = self.box.shape[:-1]
        return RunningAttention(
            q.new_full((*lead, 1), -math.inf), q.new_zeros((*lead, 1)), q.new_zeros((*lead, self.spec.value[-1]))
        )

    def add(
        self, state: RunningAttention, q: Tensor, k: Tensor, v: Tensor, first: int, mask: Tensor | None = None
    ) -> None:
        """Let the queries attend to a block of keys and values, from the global row `first` on.

        `mask` is that of all queries of the box and the keys of the block; it may broadcast.
        """
        q, k, v = wide(q), self._served(k), self._served(v)
        for rows, columns in self._pieces(first, k):
            values = _rows(v, columns)
            scores = self._scores(_rows(q, rows), _rows(k, columns), rows, _moved(columns, first), mask, first)
            largest, total, weighted = (_rows(x, rows) for x in (state.largest, state.total, state.weighted))
            highest = torch.maximum(largest, scores.amax(-1, keepdim=True))
            level = highest.masked_fill(highest == -math.inf, 0.0)
            shares = scores.sub_(level).exp_()
            shrink = (largest - level).exp_()
            total.mul_(shrink).add_(shares.sum(-1, keepdim=True))
            weighted.mul_(shrink).add_(self._kept(shares, rows, _moved(columns, first)) @ values)
            largest.copy_(highest)

    def finish(self, state: RunningAttention) -> tuple[Tensor, Tensor]:
        """The output, and L of each query, which backward needs."""
        sees_nothing = state.total == 0
        y = state.weighted / state.total.masked_fill(sees_nothing, 1.0)
        return y, (state.largest + state.total.log()).masked_fill(sees_nothing, math.inf)

    def gradients(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        first: int,
        mask: Tensor | None,
        level: Tensor,
        dy: Tensor,
        delta: Tensor,
        dq: Tensor,
        dmask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The gradients of a block of keys and values; those of queries and mask are added to `dq` and `dmask`.

        `level` is L, and `delta` the sum of ``dy * y`` over the last dim.
        """
        queries, keys, values = wide(q), self._served(k), self._served(v)
        dk, dv = (
            torch.zeros(*self.box.shape[:-2], *x.shape[-2:], dtype=x.dtype, device=x.device) for x in (keys, values)
        )
        for rows, columns in self._pieces(first, keys):
            own, at = _rows(queries, rows), _moved(columns, first)
            scores = self._scores(own, _rows(keys, columns), rows, at, mask, first)
            shares = scores.sub_(_rows(level, rows)).exp_()
            of_y = _rows(dy, rows)
            kept = self._kept(shares, rows, at)
            _rows(dv, columns).add_(kept.transpose(-2, -1) @ of_y)
            ds = (of_y @ _rows(values, columns).transpose(-2, -1)).mul_(kept)
            ds = ds.sub_(shares.mul_(_rows(delta, rows)))
            of_queries = _rows(dq, rows)
            of_queries.add_((ds @ _rows(keys, columns)).sum_to_size(of_queries.shape), alpha=self.spec.scale)
            _rows(dk, columns).add_(ds.transpose(-2, -1) @ own, alpha=self.spec.scale)
            if dmask is not None:
                part = _of_mask(dmask, rows, columns)
                part.add_(ds.sum_to_size(part.shape))
        return self.spec.gathered(self.box, dk, k.shape), self.spec.gathered(self.box, dv, v.shape)

    def _served(self, x: Tensor) -> Tensor:
        return self.spec.served(self.box, wide(x))

    def _pieces(self, first: int, keys: Tensor) -> Iterator[tuple[Interval, Interval]]:
        """Rows of the box and columns of the block, which are computed together, unless no row sees any column."""
        (*lead, queries, _), count = self.box.shape, keys.shape[-2]
        columns = min(COLUMNS, max(1, count))
        step = max(ROWS, SCORES // (columns * max(1, math.prod(lead))))
        if keys.is_meta:  # for a plan, a few pieces will do
            step = max(step, queries * count // (columns * PLANNED))
        offset = self.box.start[-2]
        for a in range(0, queries, step):
            rows = a, min(a + step, queries)
            for b in range(0, count, columns):
                if not self.spec.is_causal or offset + rows[1] > first + b:
                    yield rows, (b, min(b + columns, count))

    def _scores(
        self, q: Tensor, k: Tensor, rows: Interval, columns: Interval, mask: Tensor | None, first: int
    ) -> Tensor:
        scores = (q * self.spec.scale) @ k.transpose(-2, -1)
        scores = scores.expand(*self.box.shape[:-2], *scores.shape[-2:])
        if self.spec.is_causal:
            sees = causal_mask(_moved(rows, self.box.start[-2]), columns, q.device)
            scores = scores if sees is None else scores.masked_fill(~sees, -math.inf)
        if mask is not None:
            part = _of_mask(mask, rows, _moved(columns, -first))
            if part.dtype == torch.bool:
                return scores + torch.zeros_like(part, dtype=scores.dtype).masked_fill_(~part, -math.inf)
            return scores + part
        return scores

    def _kept(self, shares: Tensor, rows: Interval, columns: Interval) -> Tensor:
        """The shares after dropout."""
        if not self.spec.drop:
            return shares
        assert self.stream is not None
        a, b = _moved(rows, self.box.start[-2])
        lead = self.box.start[:-2], self.box.stop[:-2]
        own = Box((*lead[0], a, columns[0]), (*lead[1], b, columns[1]))
        kept = self.stream.kept(shares, self.spec.drop, Elements(self.spec.weights, own))
        return self.stream.scaled(shares, kept, self.spec.drop)


def _rows(x: Tensor, rows: Interval) -> Tensor:
    return x.narrow(-2, rows[0], rows[1] - rows[0])


def _moved(interval: Interval, by: int) -> Interval:
    return interval[0] + by, interval[1] + by


def _of_mask(mask: Tensor, rows: Interval, columns: Interval) -> Tensor:
    """A part of a mask, whose dims of extent 1 broadcast."""
    if mask.dim() > 1 and mask.shape[-2] > 1:
        mask = _rows(mask, rows)
    return mask.narrow(-1, columns[0], columns[1] - columns[0]) if mask.shape[-1] > 1 else mask
