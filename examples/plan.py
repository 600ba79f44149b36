"""Which grid should 4,096 workers form? Memory and traffic of a training step, counted before paying for the machine.

python examples/plan.py        # no worker is started and no weight is made; draws out/plan.png if matplotlib is there

The same code runs as on real workers, for a few representative ones, over a transport that counts and moves nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import gridwise
from gridwise.deferred_init import deferred_init
from gridwise.errors import UnsupportedError
from gridwise.planning import readable

GRIDS = {"rows": (1, 1, 4096, 1), "squares": (1, 1, 64, 64), "squares, and the batch": (4, 1, 32, 32)}
INPUT = (4, 3, 16384, 16384)  # 12 GiB


class Segmentation(nn.Module):
    """A small U-Net: down, up, and a skip connection."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, width, 5, padding=2), nn.BatchNorm2d(width), nn.ReLU())
        self.down = nn.MaxPool2d(2)
        self.deep = nn.Sequential(nn.Conv2d(width, 2 * width, 5, padding=2), nn.BatchNorm2d(2 * width), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.leave = nn.Conv2d(2 * width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return self.leave(torch.cat([x, self.up(self.deep(self.down(x)))], dim=1))


def loss(P_y: gridwise.Partition, y: Tensor) -> Tensor:
    return gridwise.nn.DistributedMSELoss(P_y)(y, torch.zeros_like(y))


def main() -> None:
    model = deferred_init(Segmentation)
    plans = {name: gridwise.plan(model, grid, INPUT, loss=loss) for name, grid in GRIDS.items()}
    for name, plan in plans.items():
        memory = max(worker.memory for worker in plan.workers)
        sent = max(worker.sent for worker in plan.workers)
        messages = max(worker.messages for worker in plan.workers)
        print(
            f"{name:24} {readable(memory):>10} and {readable(sent):>10} sent in {messages} messages, per worker and step"
        )
    best = min(plans.values(), key=lambda plan: max(worker.sent for worker in plan.workers))
    print(best)
    try:
        gridwise.show.planned(best, "out/plan.png")
        print("drawn: out/plan.png")
    except UnsupportedError as error:
        print(error)


if __name__ == "__main__":
    main()
