"""A small network with all that a captured step has to get right: halos, statistics, random numbers, strides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gridwise


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 3, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(3)
        self.drop = torch.nn.Dropout(0.3)
        self.last = torch.nn.Conv2d(3, 1, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(self.first(x)).relu()))


class HandBuilt(Net):
    def __init__(self, P: Any) -> None:
        torch.nn.Module.__init__(self)
        self.first = gridwise.nn.DistributedConv2d(P, 1, 3, 3, padding=1)
        self.norm = gridwise.nn.DistributedBatchNorm2d(P, 3)
        self.drop = gridwise.nn.DistributedDropout(P, 0.3)
        self.last = gridwise.nn.DistributedConv2d(P, 3, 1, 3, stride=2)
