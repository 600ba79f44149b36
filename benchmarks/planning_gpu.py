"""Planned memory against that of the GPU's allocator: one worker, forward, backward and optimiser.

    python benchmarks/planning_gpu.py

`torch.cuda.max_memory_allocated` of the third step against the plan for a machine whose workers compute on CUDA; goal:
within 5 %. The last column is the memory of the torch model itself.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import gridwise
from planning import UNet3d
from run import NOTHING_HERE

MIB = 2**20


class Bottleneck(nn.Module):
    """A block of ResNet-50: 1 x 1, 3 x 3 and 1 x 1 convolutions, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet50(nn.Module):
    """As in torchvision."""

    def __init__(self) -> None:
        super().__init__()
        enter = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.enter = nn.Sequential(*enter)
        blocks: list[nn.Module] = []
        inputs = 64
        for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(depth):
                blocks.append(Bottleneck(inputs, width, stride if i == 0 else 1))
                inputs = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.pool, self.last = nn.AdaptiveAvgPool2d(1), nn.Linear(inputs, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pool(self.blocks(self.enter(x))).flatten(1))


MODELS = {
    "ResNet-50 (64,3,224,224)": (ResNet50, (64, 3, 224, 224)),
    "3-D U-Net (1,1,128,160,192)": (UNet3d, (1, 1, 128, 160, 192)),
}
OPTIMIZERS = {"SGD, momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9), "Adam": torch.optim.Adam}


def peak_of(
    make: Callable[[], nn.Module], shape: tuple[int, ...], optimizer: Callable[..., torch.optim.Optimizer]
) -> int:
    """Peak bytes handed out by the allocator, in a step after some warm-up steps."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model, x = make(), torch.randn(shape, device="cuda")
    optimised = optimizer(model.parameters())
    for _ in range(3):
        optimised.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        y = model(x)
        y.backward(torch.ones_like(y))
        del y
        optimised.step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main() -> None:
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        sys.exit(NOTHING_HERE)
    table = Table("model", "optimiser", "planned MiB", "allocated MiB", "planned / allocated", "torch alone MiB")
    table.title = f"peak memory of a step on {torch.cuda.get_device_name()}; goal: within 5 %"
    for name, (make, shape) in MODELS.items():
        grid = (1,) * len(shape)
        for kind, optimizer in OPTIMIZERS.items():
            planned = gridwise.plan(make(), grid, shape, optimizer=optimizer, machine="nvidia-h100").workers[0].memory
            P_x = gridwise.world().create_cartesian_topology_partition(grid)
            ours = peak_of(lambda make=make, P_x=P_x: gridwise.distribute(make().cuda(), P_x), shape, optimizer)
            alone = peak_of(lambda make=make: make().cuda(), shape, optimizer)
            sizes = [f"{nbytes / MIB:,.1f}" for nbytes in (planned, ours, alone)]
            table.add_row(name, kind, *sizes[:2], f"{planned / ours:.3f}", sizes[2])
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
