"""Programs that run alike on real workers and on pretended ones."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gridwise import nn
from gridwise.partition import Partition, zero_volume_tensor


class Net(torch.nn.Module):
    """Halos, statistics, a pool at a seam, a flatten that moves everything to the batch, two kinds of sharing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 5, padding=2, padding_mode="reflect")
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 6, 3, stride=2, padding=1)
        self.pool = torch.nn.MaxPool2d(3, 2)
        self.last = torch.nn.Linear(6 * 3 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.second(torch.relu(self.norm(self.first(x))))))
        return self.last(x.flatten(1))


class Residual(torch.nn.Module):
    """Functions in place of modules, groups, a size in a view, interpolation, a skip, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = torch.nn.Conv2d(3, 4, 7, 2, 3)
        self.inner = torch.nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.norm = torch.nn.GroupNorm(2, 4)
        self.up = torch.nn.ConvTranspose2d(4, 4, 2, 2)
        self.dropout = torch.nn.Dropout(0.25)
        self.last = torch.nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.enter(x), 3, 2, 1)
        x = F.relu(x + self.norm(self.inner(x)))
        x = self.up(x) + F.interpolate(x, scale_factor=2.0)
        x = F.adaptive_avg_pool2d(x, 1)
        return self.last(self.dropout(x.view(x.size(0), -1)))


class Gated(torch.nn.Module):
    """Means over space: as a gate that is lined up with what it gates, and before a classifier; a parameter in front."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.less, self.more = torch.nn.Conv2d(4, 2, 1), torch.nn.Conv2d(2, 4, 1)
        self.scale = torch.nn.Parameter(torch.ones(4, 1, 9))
        self.last = torch.nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale * self.enter(x)
        x = x * torch.sigmoid(self.more(F.relu(self.less(x.mean((2, 3), keepdim=True)))))
        return self.last((x * x.mean(2, keepdim=True)).mean((2, 3)))


class UNet(torch.nn.Module):
    """Two levels down, and up again, each joined with what it was made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 4, 3, 2, 1), torch.nn.Conv2d(4, 6, 3, 2, 1)
        self.up, self.out = torch.nn.ConvTranspose2d(6, 4, 2, 2), torch.nn.ConvTranspose2d(8, 2, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        half = F.relu(self.first(x))
        up = self.up(F.relu(self.second(half)))
        return torch.cat([x, self.out(torch.cat([half, up], 1))], 1)


class Several(torch.nn.Module):
    """Two outputs on two grids, from values that are put back by their indices and scaled by plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.unpool = torch.nn.MaxPool2d(2, return_indices=True), torch.nn.MaxUnpool2d(2)
        self.enter, self.last = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Linear(4, 5)
        self.scale = torch.linspace(1, 2, 4).view(4, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = self.pool(self.enter(x) * torch.arange(16.0))
        x = self.unpool(values, places) * self.scale
        return x, self.last(x.mean((2, 3)))


class Tokens(torch.nn.Module):
    """A class token, attention, a convolution by function, weights that are tied, rows that cross samples."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = torch.nn.Parameter(torch.ones(8, 3, 3, 3) / 27)
        self.token, self.position = torch.nn.Parameter(torch.ones(1, 1, 8)), torch.nn.Parameter(torch.ones(1, 50, 8))
        self.encoder = torch.nn.TransformerEncoderLayer(8, 2, 12, 0.1, batch_first=True)
        self.first, self.second = torch.nn.Linear(6, 6, bias=False), torch.nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.kernel, padding=1).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.size(0), -1, -1), x], 1) + self.position[:, : x.size(1) + 1]
        x = torch.einsum("bnc,bnd->bcd", self.encoder(x), x)
        return self.second(torch.relu(self.first(x.reshape(-1, 6)))) + self.first.weight.mean()


def cross_entropy(P_y: Partition, y: Tensor) -> Tensor:
    return nn.DistributedCrossEntropyLoss(P_y)(y, torch.zeros(y.shape[0], dtype=torch.int64, device=y.device))


def mse(P_y: Partition, y: Tensor) -> Tensor:
    return nn.DistributedMSELoss(P_y)(y, torch.zeros_like(y))


def of_both(P_y: tuple[Partition, Partition], y: tuple[Tensor, Tensor]) -> Tensor:
    return mse(P_y[1], y[1]) + mse(P_y[0], y[0])


INPUT = (5, 3, 15, 18)
MODELS = {
    "net": (Net, INPUT, mse),
    "residual": (Residual, (9, 3, 33, 40), cross_entropy),
    "gated": (Gated, (5, 3, 7, 9), mse),
    "unet": (UNet, (5, 3, 12, 16), mse),
    "tokens": (Tokens, (6, 3, 7, 6), mse),
    "several": (Several, (5, 3, 12, 16), of_both),
}


def by_hand(P_world: Partition, device: str, ask: bool = True) -> None:
    """A model of layers made one by one, with weights on P_w and a source that only worker 0 holds."""
    P_x = P_world.create_cartesian_topology_partition([1, 1, 2, 2])
    P_0 = P_world.create_partition_inclusive([0])
    P_flat, P_out = (P_0.create_cartesian_topology_partition(shape) for shape in ([1, 1, 1, 1], [1, 1]))
    P_w = P_world.create_cartesian_topology_partition([2, 2])

    def expect(*shape: int) -> None:
        if ask:
            P_world.transport.ledger.expected = shape  # type: ignore[attr-defined]

    conv = nn.DistributedConv2d(P_x, 3, 8, 3, padding=1, device=device)
    norm = nn.DistributedBatchNorm(P_x, 8, device=device)
    linear = nn.DistributedLinear(P_out, 8 * 7 * 9, 6, P_y=P_out, P_w=P_w, device=device)
    rows = {0: (4, 5), 1: (4, 4), 2: (3, 5), 3: (3, 4)}[P_world.rank]
    expect(2, 3, 7, 9)
    x = conv(torch.ones(2, 3, *rows, device=device))
    expect(2, 8, 7, 9)
    x = nn.Repartition(P_x, P_flat)(norm(x))
    x = x.flatten(1) if P_0.active else x
    expect(2, 8 * 7 * 9)
    y = linear(x)
    expect(2, 6)
    loss = nn.DistributedMSELoss(P_out)(y, torch.zeros_like(y))
    loss.backward()
    source = torch.ones(3, 4, device=device, requires_grad=True) if P_0.active else zero_volume_tensor()
    copy = nn.Broadcast(P_out, P_w)(source)
    nn.SumReduce(P_w, P_out)(copy * 2).sum().backward()
