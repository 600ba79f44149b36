"""Slow momentum: Gridwise's own, with torchdistX's default of `zero_grad` and its step counter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gridwise.optim import slow_momentum


class SlowMomentumOptimizer(slow_momentum.SlowMomentumOptimizer):
    """`gridwise.optim.SlowMomentumOptimizer`, whose `zero_grad` fills gradients with zeros by default."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none)

    @property
    def averager(self) -> Any:
        """`step` and `period` of the averaging."""
        return SimpleNamespace(step=self.steps, period=self.slowmo_freq)

    @property
    def _prev_parameters(self) -> list[Any]:
        return self._previous
