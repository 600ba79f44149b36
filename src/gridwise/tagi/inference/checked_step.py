"""A compiled or captured step, checked against the plain step before it is trusted.

    candidate     the step as a compiler or a CUDA graph runs it: fast, but wrong where that tool has a bug
    plain         the same step by the layers themselves: the reference

The first `CALLS` calls of a candidate are computed twice from the same values: by the candidate, on the tensors
themselves, and by the plain step, on copies. Everything that a step changes or returns is compared. If both agree, the
candidate's results stand. If not, the tensors get their old values back, the log says how large the error was, and the
next candidate, or finally the plain step, takes over this call and all later ones. Either way, each call is one step.

Agreement is judged by norms. For a tensor that was `old` and should become `want`,

    |got - want|  <=  tolerance |want - old|  +  16 eps |want|        tolerance = 1000 eps, eps of the coarsest products

with `old` = 0 for what a step returns. Norms rather than single values, because rounding may put a few values far off;
relative to the change rather than the value, because a parameter that is not updated at all is still close to its new
value. For networks up to a ResNet-18, the outputs of a step in float32 differ from those in float64 by 10 eps, and the
second term covers the difference in the parameters, with one exception: among millions of units, some are so close to
a ReLU's zero that rounding decides which side they are on. One such unit in 1024 samples of 4096 units is 7e-4 of the
change of a weight matrix. So where the steps disagree, the plain one is run twice more, with such jumps moved up and
down by `REACH` eps (`jumps.py`). How far each value then moves,

    slack = |up - want| + |down - want|

is how much of its error rounding can explain: twice that is subtracted from |got - want|, value by value, before the
norm is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...log import logger
from .jumps import jumps_moved

Run = Callable[..., Sequence[Tensor]]

CALLS = 4
"""Calls that are checked: uninitialised memory is often zero in the first, and a CUDA graph replays from the fourth."""

REACH = 64
"""How close to a jump rounding decides, in eps of the units' size: at most 15 in float32 for sums of 4096 terms."""

_LOOSEST = 0.25  # upper limit of the tolerance, for products in half precision
_FURTHEST = 0.01  # upper limit of how far jumps are moved, likewise


class StepCandidate(NamedTuple):
    """A step that has to be checked, and its name for the log."""

    name: str
    run: Run


class Checked:
    """The first of `candidates` that agrees with `plain`, or `plain` itself.

    Parameters
    ----------
    plain
        The step: changes some of its tensors in place and returns others.
    reference
        The same, without side effects other than on its tensors: the reference for comparison.
    candidates
        Faster versions of the step; the next one is only requested when the last was found wrong.
    eps
        The relative rounding error of one operation of the step.
    """

    def __init__(self, plain: Run, reference: Run, candidates: Iterator[StepCandidate], eps: float) -> None:
        self._plain, self._reference, self._candidates, self._eps = plain, reference, candidates, eps
        self._left = 0
        self._run, self.name = plain, "plain"
        self._next()

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        return self._checked(tensors) if self._left else self._run(*tensors)

    @property
    def trusted(self) -> Run | None:
        """What runs, once all of its calls have been checked; None before."""
        return None if self._left else self._run

    def _next(self) -> None:
        candidate = next(self._candidates, None)
        self._left = CALLS if candidate else 0
        self.name, self._run = candidate or ("plain", self._plain)

    def _checked(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        old = _copies(tensors)
        expected = _copies(tensors)
        returned = self._reference(*expected)
        slack: list[Tensor] = []
        while self._left:
            why = ""
            try:
                got = self._run(*tensors)
                want = [*expected, *returned]
                why = disagreement([*tensors, *got], want, old, self._eps)
                if why:
                    slack = slack or self._slack(old, want)
                    why = disagreement([*tensors, *got], want, old, self._eps, slack)
            except Exception as error:  # any error of a candidate counts: the plain step raised none
                why = f"it raised {type(error).__name__}: {error}"
            if not why:
                self._left -= 1
                if not self._left:
                    self._candidates = iter(())  # releases what the iterator holds
                return got
            for tensor, value in zip(tensors, old, strict=True):
                tensor.copy_(value)
            wrong = self.name
            self._next()
            logger.warning("TrainStep: the %s step was wrong, the %s one is used: %s", wrong, self.name, why)
        return self._plain(*tensors)

    def _slack(self, old: Sequence[Tensor], want: Sequence[Tensor]) -> list[Tensor]:
        """How far each value moves when the jumps are moved by more than rounding."""
        total = [torch.zeros_like(t) for t in want]
        reach = min(REACH * self._eps, _FURTHEST)
        for side in (reach, -reach):
            tensors = _copies(old)
            with jumps_moved(side):
                made = [*tensors, *self._reference(*tensors)]
            for sum_, mine, other in zip(total, made, want, strict=True):
                sum_ += (mine - other).abs().nan_to_num(0, 0, 0)
        return total


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of each tensor; a tensor that occurs twice is copied once."""
    copies = {id(t): t.detach().clone() for t in tensors}
    return [copies[id(t)] for t in tensors]


# ---- agreement -------------------------------------------------------------------------------------------------------
def disagreement(
    got: Sequence[Tensor], want: Sequence[Tensor], old: Sequence[Tensor], eps: float, slack: Sequence[Tensor] = ()
) -> str:
    """How far `got` is from `want`, in words; empty where rounding explains it.

    `old` has the values before the step of the tensors that it changes, which come first in `got` and `want`; `slack`
    is half the error allowed for each single value.
    """
    if len(got) != len(want):
        return f"{len(got)} tensors instead of {len(want)}"
    tolerance = min(1000 * eps, _LOOSEST)
    worst, words = 0.0, ""
    for i, (mine, other) in enumerate(zip(got, want, strict=True)):
        what = f"tensor {i}, which it changes," if i < len(old) else f"output {i - len(old)}"
        if mine.shape != other.shape or mine.dtype != other.dtype:
            return f"{what} is {mine.dtype} {tuple(mine.shape)} instead of {other.dtype} {tuple(other.shape)}"
        if not torch.equal(torch.isfinite(mine), torch.isfinite(other)):
            return f"{what} has values that are not finite in other places"
        before = old[i] if i < len(old) else torch.zeros_like(other)
        apart = _norm(mine - other, slack[i] if slack else None)
        change, size = _norm(other - before), _norm(other)
        rounding = 16 * eps * size if other.is_floating_point() else 0.0
        if apart > tolerance * change + rounding and apart / (change or size or 1.0) >= worst:
            worst = apart / (change or size or 1.0)
            words = (
                f"{what} of shape {tuple(other.shape)} differs by {apart:.2g}, {worst:.2g} of what the step does to it"
            )
    return words


def _norm(x: Tensor, slack: Tensor | None = None) -> float:
    """|x|, with non-finite values as zero, and each value reduced by twice its `slack`."""
    x = x.double() if not x.is_floating_point() else x.nan_to_num(0.0, 0.0, 0.0)
    if slack is not None:
        x = (x.abs() - 2 * slack).clamp_min(0.0)
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))
