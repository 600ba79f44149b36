"""Slow momentum: Gridwise's own, with torchdistX's default of `zero_grad` and its averager."""

from __future__ import annotations

from typing import Any

from gridwise.optim import slow_momentum


class SlowMomentumOptimizer(slow_momentum.SlowMomentumOptimizer):
    """`gridwise.optim.SlowMomentumOptimizer`, whose `zero_grad` fills gradients with zeros by default."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none)

    @property
    def averager(self) -> Averager:
        """`step` and `period` of the averaging; a period of one's own leaves that of the momentum as it is."""
        return Averager(self)

    def _averages_now(self) -> bool:
        return self.steps % self.averager.period == 0

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.averager.period = self.slowmo_freq

    @property
    def _prev_parameters(self) -> list[Any]:
        return self._previous


class Averager:
    """What the optimiser's averaging shows and lets one set."""

    def __init__(self, optimizer: SlowMomentumOptimizer) -> None:
        self._optimizer = optimizer

    @property
    def step(self) -> int:
        return self._optimizer.steps

    @step.setter
    def step(self, value: int) -> None:
        self._optimizer.steps = value

    @property
    def period(self) -> int:
        return int(vars(self._optimizer).get("_period", self._optimizer.slowmo_freq))

    @period.setter
    def period(self, value: int) -> None:
        vars(self._optimizer)["_period"] = value
