"""Optimisers that need whole tensors refuse blocks, without being asked."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.testing import workers


def stepped(optimizer: torch.optim.Optimizer, model: torch.nn.Module, x: torch.Tensor) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


@workers(2)
def test_blocks_are_refused_and_replicas_are_not() -> None:
    split = gridwise.nn.DistributedLinear(
        gridwise.world().create_cartesian_topology_partition([1, 2]), 4, 4, bias=False
    )
    whole = gridwise.nn.DistributedLinear(
        gridwise.world().create_cartesian_topology_partition([2, 1]), 4, 4, bias=False
    )
    kinds = [torch.optim.LBFGS, torch.optim.Adafactor, *([torch.optim.Muon] if hasattr(torch.optim, "Muon") else [])]
    for kind in kinds:
        with pytest.raises(gridwise.errors.UnsupportedError, match=f"{kind.__name__} computes with whole tensors"):
            stepped(kind(split.parameters()), split, torch.ones(2, 2))
        stepped(kind(whole.parameters()), whole, torch.ones(1, 4))
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        stepped(kind(split.parameters(), lr=0.1), split, torch.ones(2, 2))
    gridwise.check_replicas(whole)
