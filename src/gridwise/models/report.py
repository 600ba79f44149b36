"""What a placed model gathers: each operator for which a tensor is gathered that should have stayed in blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from .placement import SMALL, GlobalTensor


@dataclass(frozen=True)
class Gather:
    """One use of a cut tensor that makes it whole on every worker."""

    operator: str
    module: str
    line: str
    reason: str
    bytes: int
    """Bytes that each worker receives in a forward pass; backward sends as many."""
    has_rule: bool
    combines: bool = False
    """Whether the operator combines the elements along every dim that could be cut."""

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        at = f"\n      {self.line}" if self.line else ""
        return f"{self.operator}{where}: {self.reason}, {self.bytes} bytes per step{at}"


@dataclass
class Report:
    """What `distribute` did with a model.

    Attributes
    ----------
    workers : number of workers
    operators : number of operators in the recorded model
    gathers : where tensors are gathered, and why
    moved : bytes that this worker receives in movements between operators, in a forward pass, halos included
    imbalance : size of the largest block over the average, for the outputs of all operators, weighted by size
    """

    workers: int
    operators: int = 0
    gathers: list[Gather] = field(default_factory=list)
    moved: int = 0
    _largest: float = 0.0
    _average: float = 0.0

    @property
    def imbalance(self) -> float:
        return self._largest / self._average if self._average else 1.0

    def count(self, value: GlobalTensor) -> None:
        """Add the largest and the average block of an operator's output, if that is cut and not small."""
        if value.layout is not None and value.volume > SMALL:
            sizes = [max(b - a for a, b in pairwise(cuts)) for cuts in value.layout.cuts]
            self._largest += prod(sizes)
            self._average += value.volume / self.workers

    def __str__(self) -> str:
        lines = [
            f"{self.workers} workers; {self.moved} bytes moved between operators per forward pass; "
            f"largest block / average {self.imbalance:.2f}"
        ]
        lines += [f"  {gather}" for gather in self.gathers] or ["  nothing is gathered"]
        return "\n".join(lines)
