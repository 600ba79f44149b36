"""The discontinuities (jumps) of a step, and how to move them, to see which differences rounding can explain.

A ReLU passes the variance of a unit on if its mean is above zero, and nothing otherwise. A mean that rounding puts on
the other side of zero therefore changes everything that follows; among millions of units there are some. The same goes
for almost equal means in a window of `MaxPool2d`, and for variances that an update brings almost to zero.

    with jumps_moved(r):    all jumps are moved up, by r times the size of the values compared
    with jumps_moved(-r):   down

A unit that is closer to a jump than that is on different sides in the two runs: their difference is what rounding can
explain (`checked_step.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_SHIFT = ContextVar("gridwise_tagi_shift", default=0.0)


@contextmanager
def jumps_moved(reach: float) -> Iterator[None]:
    """Move all jumps by `reach` times the size of the values compared, inside the context."""
    token = _SHIFT.set(reach)
    try:
        yield
    finally:
        _SHIFT.reset(token)


def is_positive(x: Tensor) -> Tensor:
    """Whether x > 0, for a batch of units; with the threshold moved inside `jumps_moved`."""
    shift = _SHIFT.get()
    return x > 0 if not shift else x > shift * _size(x)


def variance_threshold(var: Tensor) -> float:
    """The threshold that variances must exceed: zero, moved inside `jumps_moved`."""
    shift = _SHIFT.get()
    return 0.0 if not shift else shift * float(_size(var[None]).max())


def max_pool_keys(x: Tensor) -> Tensor:
    """The values by which a maximum is chosen: x itself, with noise added inside `jumps_moved`."""
    shift = _SHIFT.get()
    if not shift:
        return x
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0), device="cpu").to(x)
    return x + shift * _size(x) * noise


def _size(x: Tensor) -> Tensor:
    """The root mean square of all values, or that of a unit over the batch if larger."""
    squares = torch.where(torch.isfinite(x), x, 0.0).square()
    return torch.maximum(squares.mean(), squares.mean(0, keepdim=True)).sqrt()
