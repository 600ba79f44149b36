"""One step of the parameters: the innovations of a batch, capped, applied in place.

With the raw sums of a layer over the batch (for a Linear layer `s1 = delta_mu' m`, `s2 = delta_var' m**2`):

    delta_mu  = var    s1          capped at +-bar,  bar = sqrt(var) / cap
    delta_var = var**2 s2          capped at +-bar
    mu  <- mu + delta_mu
    var <- var + delta_var,        and FLOOR where that is not positive

The sums, not the products with the variances, are what workers add up: then any number of workers is one large batch.

On a CPU the pass runs in blocks that stay in the cache, so that each of the four tensors crosses the memory bus once;
a dozen separate passes over 20 million parameters would take five times as long.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR = 1e-5  # the variance of a weight whose update would have made it negative
_BLOCK = 1 << 15  # elements; five float32 tensors of this size fit the second-level cache


def cap_factor(batch: int) -> float:
    """How far a step may go: sqrt(var) / factor. One sample may go far, a large batch less so."""
    if batch <= 1:
        return 0.1
    return 2.0 if batch < 256 else 3.0


def capped_update(mu: Tensor, var: Tensor, s1: Tensor, s2: Tensor, cap: float | None) -> Tensor:
    """Update `mu` and `var` in place; return how many variances had to be put to the floor (a 0-d tensor)."""
    blocked = mu.device.type == "cpu" and mu.numel() > 2 * _BLOCK and not torch.compiler.is_compiling()
    if not (blocked and all(t.is_contiguous() for t in (mu, var, s1, s2))):
        return _update_block(mu, var, s1, s2, cap)
    flat = [t.view(-1).split(_BLOCK) for t in (mu, var, s1, s2)]
    counts = [_update_block(m, v, a, b, cap) for m, v, a, b in zip(*flat, strict=True)]
    return torch.stack(counts).sum()


def _update_block(mu: Tensor, var: Tensor, s1: Tensor, s2: Tensor, cap: float | None) -> Tensor:
    delta_mu = var * s1
    delta_var = (var * var).mul_(s2)
    if cap is not None:
        bar = torch.sqrt(var).div_(cap)
        low = -bar
        delta_mu = delta_mu.clamp_(low, bar)
        delta_var = delta_var.clamp_(low, bar)
    mu.add_(delta_mu)
    var.add_(delta_var)
    negative = var <= 0
    var.masked_fill_(negative, FLOOR)
    return negative.sum()
