"""Models that people use, small; and some steps of training beside the sequential model."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise


class LeNet5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.tanh(self.conv1(x)), 2)
        x = F.max_pool2d(torch.tanh(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    def __init__(self, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        self.layers = nn.Sequential(
            *(
                Block(
                    width * (max(1, 2**stage // 2) if first else 2**stage),
                    width * 2**stage,
                    2 if first and stage else 1,
                )
                for stage in range(4)
                for first in (True, False)
            )
        )
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.avgpool(self.layers(self.stem(x))), 1))


def double_conv(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1),
        nn.BatchNorm2d(after),
        nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Two levels; odd sizes are padded to those of the skip connection, as the usual implementation does."""

    def __init__(self, width: int = 4, bilinear: bool = False) -> None:
        super().__init__()
        w = width
        self.inc, self.down1, self.down2 = double_conv(2, w), double_conv(w, 2 * w), double_conv(2 * w, 4 * w)
        self.pool = nn.MaxPool2d(2)
        if bilinear:
            self.up2 = nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(4 * w, 2 * w, 1)
            )
            self.up1 = nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(2 * w, w, 1)
            )
        else:
            self.up2, self.up1 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.conv2, self.conv1 = double_conv(4 * w, 2 * w), double_conv(2 * w, w)
        self.outc = nn.Conv2d(w, 3, 1)

    def joined(self, x: Tensor, skip: Tensor) -> Tensor:
        dy, dx = skip.size()[2] - x.size()[2], skip.shape[3] - x.shape[3]
        x = F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return torch.cat([skip, x], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.inc(x)
        x2 = self.down1(self.pool(x1))
        x3 = self.down2(self.pool(x2))
        y = self.conv2(self.joined(self.up2(x3), x2))
        return self.outc(self.conv1(self.joined(self.up1(y), x1)))


class SegNet(nn.Module):
    """Two levels down and up: unpooling by the encoder's indices of what the decoder has made, to sizes that were odd."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        w = width
        self.down1, self.down2 = double_conv(2, w), double_conv(w, 2 * w)
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
        self.up2, self.up1 = double_conv(2 * w, w), nn.Conv2d(w, 3, 3, padding=1)
        self.middle = nn.Conv2d(2 * w, 2 * w, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.down1(x)
        y, first = self.pool(x1)
        x2 = self.down2(y)
        y, second = self.pool(x2)
        y = self.up2(self.unpool(self.middle(y), second, output_size=x2.size()))
        return self.up1(self.unpool(y, first, output_size=x1.size()))


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of images, as ConvNeXt does it."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.full((dim,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.pwconv2(self.act(self.pwconv1(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, dims: tuple[int, ...] = (4, 8), classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, dims[0], 4, 4), LayerNorm2d(dims[0]))
        self.first = nn.Sequential(ConvNeXtBlock(dims[0]), ConvNeXtBlock(dims[0]))
        self.down = nn.Sequential(LayerNorm2d(dims[0]), nn.Conv2d(dims[0], dims[1], 2, 2))
        self.second = ConvNeXtBlock(dims[1])
        self.norm, self.head = nn.LayerNorm(dims[1]), nn.Linear(dims[1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.down(self.first(self.stem(x))))
        return self.head(self.norm(x.mean([-2, -1])))


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attention = ((q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5).softmax(dim=-1)
        return self.proj((attention @ v).transpose(1, 2).reshape(b, n, c))


class ViT(nn.Module):
    """Patches by a convolution on the spatial grid; the encoder on blocks of the batch."""

    def __init__(self, dim: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, 4)
        self.position = nn.Parameter(0.1 * torch.randn(1, 6, dim))
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(dim), Attention(dim, 2), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 16), nn.GELU(), nn.Dropout(0.0), nn.Linear(16, dim))
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return self.head(x.mean(dim=1))


class MobileBlock(nn.Module):
    """An inverted residual with a gate, after a layer that concatenates like DenseNet's and one that shuffles."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.grow = nn.Sequential(nn.BatchNorm2d(dim), nn.ReLU6(), nn.Conv2d(dim, dim, 3, padding=1, bias=False))
        self.expand = nn.Sequential(nn.Conv2d(2 * dim, 4 * dim, 1), nn.BatchNorm2d(4 * dim), nn.Hardswish())
        self.depthwise = nn.Conv2d(4 * dim, 4 * dim, 5, padding=2, groups=4 * dim)
        self.squeeze, self.excite = nn.Conv2d(4 * dim, dim, 1), nn.Conv2d(dim, 4 * dim, 1)
        self.project = nn.Conv2d(4 * dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(torch.cat([x, self.grow(x)], 1)))
        y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        b, c, h, w = y.shape
        y = y.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)
        return x + self.project(y)


class MobileNet(nn.Module):
    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 4, 3, 2, 1), MobileBlock()
        self.dropout, self.head = nn.Dropout(0.0), nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.stem(x))
        return self.head(self.dropout(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1)))


def train_both(sequential: nn.Module, P_x: Any, shape: tuple[int, ...], classes: int, steps: int) -> None:
    """Some steps of SGD with momentum on both; losses, gradients, weights and statistics must stay equal."""
    model = gridwise.distribute(copy.deepcopy(sequential), P_x, example=torch.empty(shape, dtype=torch.float64))
    loss_of = gridwise.nn.DistributedCrossEntropyLoss(model.P_y)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (sequential, model)]
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(shape, dtype=torch.float64, generator=generator)
        y = sequential(x)
        target = torch.randint(classes, (y.shape[0], *y.shape[2:]), generator=generator)
        expected = F.cross_entropy(y, target)
        actual = model(x[gridwise.local_slice(P_x, shape)].clone())
        own = gridwise.local_slice(model.P_y, y.shape)
        loss = loss_of(actual, target[own[:1] + own[2:]])
        torch.testing.assert_close(loss, expected, rtol=1e-8, atol=1e-10)
        for optimizer, value in zip(optimizers, (expected, loss), strict=True):
            optimizer.zero_grad()
            value.backward()
        for (name, mine), whole in zip(model.named_parameters(), sequential.parameters(), strict=True):
            block = mine.block.slices if mine.block is not None else ...
            torch.testing.assert_close(
                mine.grad, whole.grad[block], rtol=1e-7, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
            )
        for optimizer in optimizers:
            optimizer.step()
    for (name, mine), whole in zip(model.state_dict().items(), sequential.state_dict().values(), strict=True):
        assert name in sequential.state_dict()
        block = mine.block.slices if getattr(mine, "block", None) is not None else ...
        torch.testing.assert_close(mine.as_subclass(Tensor).data, whole[block], rtol=1e-6, atol=1e-8)
    gridwise.check_replicas(model)
