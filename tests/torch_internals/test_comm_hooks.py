"""Torch's hook averages a gradient over the workers of its state."""

from __future__ import annotations

import torch

import gridwise
from gridwise.torch_internals.comm_hooks import DefaultState, allreduce_hook


def averaged() -> list[float]:
    gradient = torch.full((2,), 1.0 + 2 * torch.distributed.get_rank())
    allreduce_hook(DefaultState(torch.distributed.group.WORLD), gradient)
    return gradient.tolist()


def test_gradients_are_averaged_in_place() -> None:
    """In a job of its own: the workers that tests share may be more than two."""
    assert gridwise.launch(averaged, workers=2, transport="gloo") == [[2.0, 2.0], [2.0, 2.0]]
