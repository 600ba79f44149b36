"""Where a step jumps: what rounding decides where it lies close to a jump, and steps with the jumps moved.

A ReLU lets the variance of a unit through if its mean is above zero, and else nothing. A mean that rounding puts on the
other side of zero therefore changes all that follows; among millions of units there are some. So it is with means under
a `MaxPool2d` that are almost the same, and with variances that an update brings almost to zero.

    with leaning(r):    all jumps are moved up, by r times the size of the values that jump
    with leaning(-r):   down

A unit that is closer to a jump than that is on different sides in the two: together they tell what rounding can explain
(`checked_step.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_LEAN = ContextVar("gridwise_tagi_lean", default=0.0)


@contextmanager
def leaning(reach: float) -> Iterator[None]:
    """Move all jumps by `reach`, in parts of the size of the values that jump, while this lasts."""
    token = _LEAN.set(reach)
    try:
        yield
    finally:
        _LEAN.reset(token)


def is_positive(x: Tensor) -> Tensor:
    """x > 0, for a batch of units."""
    lean = _LEAN.get()
    return x > 0 if not lean else x > lean * _size(x)


def zero_of(var: Tensor) -> float:
    """The number that variances must exceed: zero."""
    lean = _LEAN.get()
    return 0.0 if not lean else lean * float(_size(var[None]).max())


def ranked(x: Tensor) -> Tensor:
    """Values by which the largest is found: x itself."""
    lean = _LEAN.get()
    if not lean:
        return x
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0), device="cpu").to(x)
    return x + lean * _size(x) * noise


def _size(x: Tensor) -> Tensor:
    """The root mean square of all values, or that of the unit over the batch where it is larger."""
    squares = torch.where(torch.isfinite(x), x, 0.0).square()
    return torch.maximum(squares.mean(), squares.mean(0, keepdim=True)).sqrt()
