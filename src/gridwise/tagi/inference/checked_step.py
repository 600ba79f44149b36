"""A step that another program has rewritten, trusted only after it has done what the plain step does.

    candidate     the step as a compiler or a capture made it: fast, and wrong where that tool has a fault
    plain         the same step by the layers themselves: the measure

The first `CALLS` calls of a candidate are made twice, from the same tensors: by the candidate, on the tensors themselves,
and by the plain step, on copies. All that a step changes or returns is compared. If it agrees, the candidate's results
stand; if not, the tensors get their old values back, the log says by how much it was wrong, and the next candidate, or in
the end the plain step, makes this call and those that follow. Either way every call is one step.

What agrees is a matter of norms. For a tensor that was `old` and should become `want`,

    |got - want|  <=  tolerance |want - old|  +  16 eps |want|        tolerance = 1000 eps, eps of the coarsest products

with `old` = 0 for what a step returns. Norms rather than single numbers, because a few may be far off by rounding; the
change rather than the value, because a parameter that is not updated at all is still close to what it should be. A step in
float32 is 10 eps from one in float64 in what it returns, up to a ResNet-18, and for parameters the second term explains all
of it, with one exception: among millions of units some lie so close to a ReLU's zero that rounding decides on their side. One
such unit in 1024 samples of 4096 units is 7e-4 of what the step does to a weight matrix. So where steps disagree, the plain
one is made twice more, with such jumps moved up and down by `REACH` eps (`jumps.py`). How far each value moves then,

    slack = |up - want| + |down - want|

is what rounding can explain of it: twice that is taken off |got - want|, value by value, before the norm is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...log import logger
from .jumps import leaning

Run = Callable[..., Sequence[Tensor]]

CALLS = 4
"""Calls that are checked: memory that was never written is often zero in the first, and a capture replays in the fourth."""

REACH = 64
"""How close to a jump rounding decides, in eps of the units' size: 15 is the most in float32 with 4096 terms in a sum."""

_LOOSEST = 0.25  # of the change, for products in half precision
_FURTHEST = 0.01  # that jumps are moved, likewise


class StepCandidate(NamedTuple):
    """A step that has to be checked, and what it is in words, for the log."""

    name: str
    run: Run


class Checked:
    """The first of `candidates` that does what `plain` does, or `plain`.

    Parameters
    ----------
    plain
        The step: changes some of its tensors in place and returns others.
    measure
        The same, leaving no trace but in its tensors.
    candidates
        Other ways to the same; the next one is only asked for when the last was found wrong.
    eps
        The relative rounding of one operation of the step.
    """

    def __init__(self, plain: Run, measure: Run, candidates: Iterator[StepCandidate], eps: float) -> None:
        self._plain, self._measure, self._candidates, self._eps = plain, measure, candidates, eps
        self._left = 0
        self._run, self.name = plain, "plain"
        self._next()

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        return self._checked(tensors) if self._left else self._run(*tensors)

    def _next(self) -> None:
        candidate = next(self._candidates, None)
        self._left = CALLS if candidate else 0
        self.name, self._run = candidate or ("plain", self._plain)

    def _checked(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        old = _copies(tensors)
        expected = _copies(tensors)
        returned = self._measure(*expected)
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
            except Exception as error:  # whatever a rewritten step may raise, the plain one did not
                why = f"it raised {type(error).__name__}: {error}"
            if not why:
                self._left -= 1
                if not self._left:
                    self._candidates = iter(())  # and what they hold
                return got
            for tensor, value in zip(tensors, old, strict=True):
                tensor.copy_(value)
            wrong = self.name
            self._next()
            logger.warning("TrainStep: the %s step was wrong, the %s one is used: %s", wrong, self.name, why)
        return self._plain(*tensors)

    def _slack(self, old: Sequence[Tensor], want: Sequence[Tensor]) -> list[Tensor]:
        """How far each value moves where jumps are moved by more than rounding."""
        total = [torch.zeros_like(t) for t in want]
        reach = min(REACH * self._eps, _FURTHEST)
        for side in (reach, -reach):
            tensors = _copies(old)
            with leaning(side):
                made = [*tensors, *self._measure(*tensors)]
            for sum_, mine, other in zip(total, made, want, strict=True):
                sum_ += (mine - other).abs().nan_to_num(0, 0, 0)
        return total


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of each; one copy of a tensor that is there twice."""
    copies = {id(t): t.detach().clone() for t in tensors}
    return [copies[id(t)] for t in tensors]


# ---- what agrees -----------------------------------------------------------------------------------------------------
def disagreement(
    got: Sequence[Tensor], want: Sequence[Tensor], old: Sequence[Tensor], eps: float, slack: Sequence[Tensor] = ()
) -> str:
    """How far `got` is from `want`, in words; empty where rounding explains it.

    `old` are the first tensors before the step, `slack` half of what each value may be off by itself.
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
    """|x|, without what is not finite, and of each value only what goes beyond twice its `slack`."""
    x = x.double() if not x.is_floating_point() else x.nan_to_num(0.0, 0.0, 0.0)
    if slack is not None:
        x = (x.abs() - 2 * slack).clamp_min(0.0)
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))
