"""A small training run for tests: a module with everything, an optimiser, a scheduler, a generator, a counter."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
        self.tied = self.body[2].weight
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def get_extra_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def training(optimiser: type[torch.optim.Optimizer], **options: Any) -> dict[str, Any]:
    torch.manual_seed(1)
    net = Net()
    opt = optimiser(net.parameters(), **options)
    schedule = torch.optim.lr_scheduler.MultiStepLR(opt, [2, 4], gamma=0.5)
    return {"net": net, "opt": opt, "schedule": schedule, "rng": torch.Generator().manual_seed(7), "step": 0}


def train(state: dict[str, Any], steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 4, generator=state["rng"])
        loss = state["net"](x).square().mean()
        state["opt"].zero_grad()
        loss.backward()
        state["opt"].step()
        state["schedule"].step()
        state["net"].count += 1
        state["step"] += 1
        losses.append(loss.item())
    return losses
