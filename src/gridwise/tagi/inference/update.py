"""One update of the parameters: the innovations of a batch, capped and applied in place.

With the raw sums of a layer over the batch (for a Linear layer `s1 = delta_mu' m`, `s2 = delta_var' m**2`):

    delta_mu  = var    s1          capped at +-bar,  bar = sqrt(var) / cap
    delta_var = var**2 s2          capped at +-bar
    mu  <- mu + delta_mu
    var <- var + delta_var,        or FLOOR where that is not positive

Workers add up the sums, not the products with the variances, so any number of workers is like one large batch.

All parameters of a network are updated together. On a GPU each operation below is one kernel for many tensors; in a
compiled step they are all fused into one. On a CPU the update runs in blocks that stay in the cache, so that each of
the four tensors crosses the memory bus once; a dozen separate passes over 20 million parameters take five times as
long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .jumps import variance_threshold
from .tracing import is_traced

FLOOR = 1e-5  # replaces a variance that an update would have made zero or negative
_BLOCK = 1 << 17  # elements; what one block touches stays in the last-level cache
_TOGETHER = 1 << 26  # elements updated by one kernel; their deltas are in memory at the same time


class ParameterChange(NamedTuple):
    """Parameters and the sums that update them, all of one shape."""

    mu: Tensor
    var: Tensor
    s1: Tensor
    s2: Tensor
    cap: float | None  # None: no cap
    floored: Tensor | None = None  # counter of the variances that were set to FLOOR


def cap_factor(batch: int) -> float:
    """The factor in the limit sqrt(var) / factor of an update: loose for one sample, tighter for a large batch."""
    if batch <= 1:
        return 0.1
    return 2.0 if batch < 256 else 3.0


def capped_update(changes: Sequence[ParameterChange]) -> None:
    """Update all `mu` and `var` in place, and the counters of variances that were set to `FLOOR`."""
    if is_traced() or not all(_is_flat_on_cpu(change) for change in changes):
        for group in _groups(changes, _TOGETHER):
            _add(group)
            for change in group:
                _put_to_floor(change)
        return
    for group in _groups(list(_in_blocks(changes)), _BLOCK):
        _add(group)
        for piece in group:
            if float(piece.var.amin()) <= variance_threshold(piece.var):  # this test costs a third of counting
                _put_to_floor(piece)


def _in_blocks(changes: Sequence[ParameterChange]) -> Iterator[ParameterChange]:
    for change in changes:
        if change.mu.numel() <= _BLOCK:
            yield change
            continue
        blocks = (t.view(-1).split(_BLOCK) for t in (change.mu, change.var, change.s1, change.s2))
        for mu, var, s1, s2 in zip(*blocks, strict=True):
            yield ParameterChange(mu, var, s1, s2, change.cap, change.floored)


def _is_flat_on_cpu(change: ParameterChange) -> bool:
    return all(t.device.type == "cpu" and t.is_contiguous() for t in change[:4]) and change.mu.numel() > 0


def _groups(changes: Sequence[ParameterChange], together: int) -> Iterator[list[ParameterChange]]:
    """Changes to be made together: of one cap, and at most `together` elements unless one change alone has more."""
    group: list[ParameterChange] = []
    size = 0
    for change in changes:
        size += change.mu.numel()
        if group and (group[0].cap != change.cap or size > together):
            yield group
            group, size = [], change.mu.numel()
        group.append(change)
    if group:
        yield group


def _add(changes: Sequence[ParameterChange]) -> None:
    """Add delta_mu and delta_var, as in the header of this file, for changes of one cap."""
    var, cap = [change.var for change in changes], changes[0].cap
    delta_mu = torch._foreach_mul(var, [change.s1 for change in changes])
    delta_var = torch._foreach_mul(var, var)
    torch._foreach_mul_(delta_var, [change.s2 for change in changes])
    if cap is not None:
        bar = torch._foreach_sqrt(var)
        torch._foreach_mul_(bar, 1.0 / cap)
        for delta in (delta_mu, delta_var):
            torch._foreach_minimum_(delta, bar)
        torch._foreach_neg_(bar)
        for delta in (delta_mu, delta_var):
            torch._foreach_maximum_(delta, bar)
    torch._foreach_add_([change.mu for change in changes], delta_mu)
    torch._foreach_add_(var, delta_var)


def _put_to_floor(change: ParameterChange) -> None:
    zero = variance_threshold(change.var)
    if change.floored is not None:
        change.floored.add_((change.var <= zero).sum())
    F.threshold(change.var, zero, FLOOR, inplace=True)
