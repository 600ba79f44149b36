"""Three architectures, as constructors to defer."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn

from .registry import CASES, case


class Bottleneck(nn.Module):
    def __init__(self, cin: int, width: int, stride: int) -> None:
        super().__init__()
        cout = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(cin, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, cout, 1, bias=False), nn.BatchNorm2d(cout)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))


@case
def resnet50() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    cin = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(depth):
            layers.append(Bottleneck(cin, width, stride if i == 0 else 1))
            cin = 4 * width
    net = nn.Sequential(*layers, nn.Linear(cin, 1000))
    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    for m in net.modules():
        if isinstance(m, Bottleneck):
            nn.init.zeros_(m.bn3.weight)
    return net


class Block(nn.Module):
    def __init__(self, d: int, heads: int, context: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.register_buffer("mask", torch.tril(torch.ones(context, context)).bool(), persistent=False)


def gpt2(vocabulary: int = 50257, context: int = 1024, d: int = 768, layers: int = 12) -> nn.Module:
    net = nn.ModuleDict(
        {"wte": nn.Embedding(vocabulary, d), "wpe": nn.Embedding(context, d)}
        | {f"h{i}": Block(d, 12, context) for i in range(layers)}
        | {"ln": nn.LayerNorm(d), "head": nn.Linear(d, vocabulary, bias=False)}
    )
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            std = 0.02 / math.sqrt(2 * layers) if name.endswith(("proj", "down")) else 0.02
            nn.init.normal_(module.weight, std=std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
    net["head"].weight = net["wte"].weight
    return net


CASES["gpt2"] = lambda: gpt2(vocabulary=5003, context=128, d=192, layers=12)


@case
def unet3d() -> nn.Module:
    def double(cin: int, cout: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv3d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm3d(cout), nn.ReLU(),
            nn.Conv3d(cout, cout, 3, padding=1, bias=False), nn.InstanceNorm3d(cout, affine=True), nn.PReLU(),
        )  # fmt: skip

    widths = (8, 16, 32, 64)
    down = nn.ModuleList(double(a, b) for a, b in zip((1, *widths[:-1]), widths, strict=True))
    up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in itertools.pairwise(widths))
    merge = nn.ModuleList(double(2 * a, a) for a in widths[:-1])
    return nn.ModuleDict({"down": down, "up": up, "merge": merge, "out": nn.Conv3d(widths[0], 3, 1)})
