"""The planner that `distribute(model, "auto", example=...)` asks for a grid."""

from __future__ import annotations

from typing import cast

import torch

from ..models.auto_grid import planners
from ..models.distribute import ParametersOption
from .plan import plan


def register() -> None:
    """Let `gridwise.distribute` ask this planner."""
    planners[:] = [best_grid]


def best_grid(
    model: torch.nn.Module, shape: tuple[int, ...], dtype: torch.dtype, workers: int, parameters: str
) -> tuple[int, ...]:
    """The grid that is ranked first; one worker has no choice."""
    if workers == 1:
        return (1,) * len(shape)
    chosen = cast(ParametersOption, parameters)
    return plan(model, workers=workers, input_shape=shape, dtype=dtype, parameters=chosen).best.grid
