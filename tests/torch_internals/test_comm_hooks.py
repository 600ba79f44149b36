"""Torch's hook averages a gradient over the workers of its state."""

from __future__ import annotations

import torch

from gridwise.testing import workers
from gridwise.torch_internals.comm_hooks import DefaultState, allreduce_hook


@workers(2, transports=("gloo",))
def test_gradients_are_averaged_in_place() -> None:
    gradient = torch.full((2,), 1.0 + 2 * torch.distributed.get_rank())
    allreduce_hook(DefaultState(torch.distributed.group.WORLD), gradient)
    assert gradient.tolist() == [2.0, 2.0]
