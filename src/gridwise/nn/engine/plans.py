"""What a layer's set-ups assigned, kept for inputs that recur.

A pooling layer that a network calls at two sizes would be set up twice in every step. So a layer keeps what its last
set-ups assigned, by the structure of the input. One worker's structure does not determine the global one, so workers
agree on the *number* of a plan. It counts the set-ups and is the same everywhere, since all workers set up together.
Each worker proposes its newest plan that fits; where these differ, all look for one that fits everywhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PLANS_KEPT = 16
"""How many plans a layer keeps, and how many states a model; the oldest is dropped first."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One set-up of a layer."""

    number: int
    structure: Hashable
    """The structure of the input on this worker."""
    assigned: dict[str, Any]
    """The attributes that set-up gave the layer."""
    by_torch: bool = False
    """Whether torch's own function makes the call, on a single worker."""


UNPLANNED = LayerPlan(0, None, {})
"""The plan of a worker in none of a layer's partitions."""
BY_TORCH = LayerPlan(0, None, {}, by_torch=True)
"""The plan of a worker that is alone, once the layer's own plan for such an input was one by torch."""


class LayerPlans:
    """The plans of one layer: the one in use, and those kept for reuse."""

    def __init__(self) -> None:
        self.count = 0
        self.current: LayerPlan | None = None
        self.assigned: set[str] | None = None
        """The names of the attributes that the set-up in progress has assigned; None outside of set-ups."""
        self.settled = set[Hashable]()
        """The looks of inputs that need no plan but `BY_TORCH`; none after an attribute of the layer was assigned."""
        self._kept: dict[int, LayerPlan] = {}
        self._newest: dict[Hashable, LayerPlan] = {}

    def find(self, structure: Hashable) -> LayerPlan | None:
        """The newest plan for inputs of this structure on this worker; on other workers the structure may differ."""
        return self._newest.get(structure)

    def add(
        self, structure: Hashable, assigned: dict[str, Any], keep: bool = True, by_torch: bool = False
    ) -> LayerPlan:
        """A new plan, numbered by `count`; kept beside others for the same structure if `keep`."""
        plan = LayerPlan(self.count, structure, assigned, by_torch)
        if keep:
            self._kept[plan.number] = self._newest[structure] = plan
        self._forget()
        return plan

    def begin(self) -> None:
        """Count a set-up that starts, even if it fails."""
        self.count += 1
        self.current = None
        self._forget()

    @contextmanager
    def noting_assignments(self) -> Iterator[set[str]]:
        """Collect the names of the attributes that a layer is given in the body."""
        self.assigned = names = set[str]()
        try:
            yield names
        finally:
            self.assigned = None

    def _forget(self) -> None:
        """Drop plans older than the last `PLANS_KEPT` set-ups: by number, so that all workers keep the same ones."""
        for number in [number for number in self._kept if number <= self.count - PLANS_KEPT]:
            oldest = self._kept.pop(number)
            if self._newest.get(oldest.structure) is oldest:
                del self._newest[oldest.structure]

    def candidates(self, structure: Hashable) -> list[int]:
        """The numbers of the plans for this structure, each in slot ``number % PLANS_KEPT``; 0 in the other slots."""
        found = [0] * PLANS_KEPT
        for number, plan in self._kept.items():
            if plan.structure == structure:
                found[number % PLANS_KEPT] = number
        return found

    def take(self, number: int) -> LayerPlan:
        return self._kept[number]

    def __deepcopy__(self, memo: dict) -> LayerPlans:
        return LayerPlans()  # a copied layer sets itself up
