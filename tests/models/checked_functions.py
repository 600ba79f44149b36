# ruff: noqa: PT018
"""Functions that check values; their assertions are plain ones, which pytest does not rewrite as it does those of tests."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gridwise.models.recording.branches import value_that_goes_on


class OutOfRange(ValueError):
    def __init__(self, low: float, count: int) -> None:
        super().__init__(f"{count} below {low}")
        self.low = low


def in_range(x: Tensor) -> Tensor:
    assert x.min() >= 0 and x.max() <= 1, f"from {x.min().item():.3f} to {x.max()}"
    return x.sqrt()


def finite(x: Tensor) -> Tensor:
    if not torch.isfinite(x).all():
        raise ValueError(f"not finite: {x}")
    return x * 2


def likely(x: Tensor) -> Tensor:
    return torch.distributions.Normal(x, x.abs() + 1).log_prob(x)


def of_torchs_own(x: Tensor) -> Tensor:
    return torch.nn.functional.gaussian_nll_loss(x, x * 2, x, reduction="none")


def compared(x: Tensor) -> Tensor:
    same = torch.equal(x, x.abs())
    if not same or torch.isnan(x).any():
        raise OutOfRange(0.0, (x < 0).sum().item())
    return x


def asserted(x: Tensor) -> Tensor:
    torch._assert(x.amax((0, 1)) < 3, "too large")
    torch._assert_async(x.min() > -0.5, "too small")
    return x


def each(x: Tensor) -> Tensor:
    parts = x.chunk(2, 1)
    assert all((part >= 0).all() for part in parts), "one of them"
    return x


def is_positive(x: Tensor) -> Any:
    return (x >= 0).all() and not x.isnan().any()


def by_a_function(x: Tensor) -> Tensor:
    ok = is_positive(x)
    assert ok
    return x


def in_a_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(in_range, x, use_reentrant=False)


def of_a_product(x: Tensor) -> Tensor:
    assert (x @ x.mT).sum() >= 0 and (x.sum() > 0) == (x.mean() > 0), "sums"
    return x


FUNCTIONS = [
    in_range,
    finite,
    likely,
    of_torchs_own,
    compared,
    asserted,
    each,
    by_a_function,
    in_a_checkpoint,
    of_a_product,
]


def checked_often(m: Any, x: Tensor) -> Tensor:
    for i in range(5):
        assert x.min() > -100 and not (x > 100 + i).any(), "far off"
        x = m.net(x)
        if x.isnan().any() or x.abs().max() > 1e6:
            raise ValueError("diverged")
    return x


def branched(x: Tensor) -> Tensor:
    if x.min() < 0:
        x = x + 1
    return x


def caught(x: Tensor) -> Tensor:
    try:
        assert x.min() >= 0
    except AssertionError:
        x = x + 1
    return x


class Asked:
    """Notes how the code that asks for its truth goes on."""

    def __init__(self, truth: bool) -> None:
        self.truth = truth
        self.found: list[bool | None] = []

    def __bool__(self) -> bool:
        self.found.append(value_that_goes_on(sys._getframe(1), False))
        return self.truth


def only_raising(yes: Asked, no: Asked) -> None:
    assert yes, f"a message {', '.join(str(i) for i in range(3))}"
    if no:
        raise ValueError("no")
    ok = bool(yes)
    if not ok or no:
        text = "a"
        raise ValueError(text + "b" if text else "c")
    for i in range(2):
        assert not no, i


def going_on(yes: Asked, no: Asked) -> int:
    one = 1 if yes else 2
    if yes:
        one += 1
    if no:
        print(one)
    if no and one:
        raise ValueError
    while no:
        one += 1
    if max(one, 3) and (yes or no):
        one += 1
    return one
