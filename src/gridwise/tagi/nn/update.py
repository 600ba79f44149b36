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
import torch.nn.functional as F
from torch import Tensor

FLOOR = 1e-5  # the variance of a weight whose update would have made it negative
_BLOCK = 1 << 17  # elements; what one block touches stays in the last-level cache


def cap_factor(batch: int) -> float:
    """How far a step may go: sqrt(var) / factor. One sample may go far, a large batch less so."""
    if batch <= 1:
        return 0.1
    return 2.0 if batch < 256 else 3.0


def capped_update(mu: Tensor, var: Tensor, s1: Tensor, s2: Tensor, cap: float | None) -> Tensor | int:
    """Update `mu` and `var` in place; return how many variances had to be put to the floor."""
    if mu.device.type != "cpu" or torch.compiler.is_compiling():
        return _update(mu, var, s1, s2, cap).sum()
    if not all(t.is_contiguous() for t in (mu, var, s1, s2)):
        return int(_update(mu, var, s1, s2, cap).sum())
    count = 0
    flat = [t.view(-1).split(_BLOCK) for t in (mu, var, s1, s2)]
    for m, v, a, b in zip(*flat, strict=True):
        count += _update_in_cache(m, v, a, b, cap)
    return count


def _update(mu: Tensor, var: Tensor, s1: Tensor, s2: Tensor, cap: float | None) -> Tensor:
    """The update as in the header of this file; returns which variances were put to the floor."""
    low, high = _bars(var, cap)
    delta_mu, delta_var = _clip(var * s1, low, high), _clip(var * var * s2, low, high)
    mu.add_(delta_mu)
    raw = var + delta_var
    var.copy_(F.threshold(raw, 0.0, FLOOR))
    return raw <= 0


def _update_in_cache(mu: Tensor, var: Tensor, s1: Tensor, s2: Tensor, cap: float | None) -> int:
    """`_update` with a look before it counts: the comparison costs as much as a third of the rest."""
    low, high = _bars(var, cap)
    mu.add_(_clip(var * s1, low, high))
    var.add_(_clip((var * var).mul_(s2), low, high))
    if var.numel() == 0 or float(var.amin()) > 0:
        return 0
    count = int((var <= 0).sum())
    var.copy_(F.threshold(var, 0.0, FLOOR))
    return count


def _bars(var: Tensor, cap: float | None) -> tuple[Tensor | None, Tensor | None]:
    if cap is None:
        return None, None
    bar = torch.sqrt(var).mul_(1.0 / cap)
    return -bar, bar


def _clip(value: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    return value if low is None or high is None else value.clamp_(low, high)
