"""Random models: chains of views, operators in place, joins, reductions, products and windows, on random grids."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GRIDS = [(1, 1, 2, 2), (4, 1, 1, 1), (2, 1, 2, 1), (1, 2, 1, 2), (1, 1, 4, 1), (1, 1, 1, 4), (2, 2, 1, 1), (1, 4, 1, 1)]
MOST = 4096


class RandomGraph(nn.Module):
    """Does what a seed says, with a pool of tensors; `rounding` changes all that it makes by about so much of itself."""

    def __init__(self, seed: int, steps: int = 12, rounding: float = 0.0) -> None:
        super().__init__()
        self.seed, self.steps, self.rounding = seed, steps, rounding
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(64, 64, dtype=torch.float64) / 8) for _ in range(2)])
        self.kernel = nn.Parameter(torch.randn(16, 16, 3, 3, dtype=torch.float64) / 12)
        self.register_buffer("mean", torch.zeros(64, dtype=torch.float64))
        self.register_buffer("var", torch.ones(64, dtype=torch.float64))

    def forward(self, x: Tensor) -> list[Tensor]:
        choose, pool = random.Random(self.seed), [x * 1.5]
        for _ in range(self.steps):
            made = _step(self, choose, pool)
            if made is not None:
                pool.append(self._rounded(made))
        return [pool[-1], *pool[: -1 : max(1, len(pool) // 3)]]

    def _rounded(self, x: Tensor) -> Tensor:
        if not self.rounding:
            return x
        signs = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(x.numel())).sign()
        return x * (1 + self.rounding * signs)


def _step(model: RandomGraph, choose: random.Random, pool: list[Tensor]) -> Tensor | None:
    x = choose.choice(pool[-3:])
    if x.dim() == 0:
        return x * 2
    kind: Callable[[RandomGraph, random.Random, list[Tensor], Tensor], Tensor | None] = choose.choice(KINDS)
    y = kind(model, choose, pool, x)
    return y if y is not None and 0 < y.numel() <= MOST and y.dim() <= 6 else None


def _pointwise(model: Any, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    return choose.choice([torch.tanh, torch.sigmoid, lambda x: x + 1, lambda x: x * x.cos(), F.gelu, torch.sin])(x)


def _combined(model: Any, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    for other in reversed(pool):
        try:
            torch.broadcast_shapes(x.shape, other.shape)
        except RuntimeError:
            continue
        if other is not x:
            return x + other if choose.random() < 0.5 else torch.where(x > 0, x, other * 0.5)
    return x - x.mean()


def _in_place(model: Any, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    x = x * 0.9 if choose.random() < 0.5 else x.clone()
    return choose.choice(
        [lambda: x.add_(1), lambda: x.tanh_(), lambda: x.mul_(x.detach().cos()), lambda: x.clamp_(-1, 1)]
    )()


def _write_to_view(model: Any, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    base = x.clone()
    d = choose.randrange(x.dim())
    n = x.shape[d]
    start = choose.randrange(n)
    stop = choose.randint(start + 1, n)
    part = base.narrow(d, start, stop - start)
    if choose.random() < 0.5:
        part.mul_(2)
    else:
        part.copy_(x.narrow(d, n - (stop - start), stop - start).sin())
    return base


def _write_through_transpose(model: Any, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    base = x * 1.1
    turned = base.transpose(0, -1)
    turned.add_(0.5)
    return base * turned.sum()


def _view(model: Any, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    shape = list(x.shape)
    for _ in range(choose.randint(1, 3)):
        d = choose.randrange(len(shape))
        factors = [f for f in range(2, shape[d]) if shape[d] % f == 0]
        if choose.random() < 0.5 and factors and len(shape) < 6:
            f = choose.choice(factors)
            shape[d : d + 1] = [f, shape[d] // f]
        elif d + 1 < len(shape):
            shape[d : d + 2] = [shape[d] * shape[d + 1]]
    return x.reshape(shape)


def _permuted(model: Any, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    order = list(range(x.dim()))
    choose.shuffle(order)
    y = x.permute(order)
    return y.contiguous() if choose.random() < 0.3 else y


def _squeezed(model: Any, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    if x.dim() < 6 and choose.random() < 0.5:
        return x.unsqueeze(choose.randrange(x.dim() + 1))
    return x.squeeze()


def _joined(model: Any, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    d = choose.randrange(x.dim())
    if choose.random() < 0.3 and x.dim() < 6:
        return torch.stack([x, x.sin()], d)
    return torch.cat([x, x.narrow(d, 0, choose.randint(1, x.shape[d])) * 2, x.cos()], d)


def _parts(model: Any, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    d = choose.randrange(x.dim())
    n = x.shape[d]
    kind = choose.randrange(5)
    if kind == 0:
        return x.select(d, choose.randrange(n))
    if kind == 1:
        start = choose.randrange(n)
        slices = [slice(None)] * d + [slice(start, choose.randint(start + 1, n), choose.choice([1, 1, 2, 3]))]
        return x[tuple(slices)]
    if kind == 2:
        parts = x.chunk(choose.randint(1, 3), d)
        return choose.choice(parts)
    if kind == 3:
        return torch.roll(x, (choose.randrange(-3, 4),), (d,))
    return x.flip(d)


def _reduced(model: Any, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    dims = choose.sample(range(x.dim()), choose.randint(1, min(2, x.dim())))
    keep = choose.random() < 0.5
    kind = choose.randrange(5)
    if kind == 0:
        return x.sum(dims, keepdim=keep)
    if kind == 1:
        return x.mean(dims, keepdim=keep)
    if kind == 2:
        return x.amax(dims, keepdim=keep)
    if kind == 3:
        return x.softmax(dims[0])
    return x.cumsum(dims[0])


def _product(model: RandomGraph, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    k = x.shape[-1]
    if choose.random() < 0.6 and k <= 64:
        return F.linear(x, model.weights[0][: choose.randint(1, 16), :k])
    if x.dim() >= 2:
        return x @ x.transpose(-1, -2) / x.shape[-1]
    return x * x.dot(x)


def _normed(model: Any, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor:
    if choose.random() < 0.5 or x.dim() < 3 or x.shape[1] > 64 or prod(x.shape) // x.shape[1] < 2:
        return F.layer_norm(x, x.shape[-choose.randint(1, x.dim()) :])
    if choose.random() < 0.5:
        c = x.shape[1]
        return F.batch_norm(x, model.mean[:c], model.var[:c], None, None, True)
    groups = [g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0]
    return F.group_norm(x, choose.choice(groups))


def _window(model: RandomGraph, choose: random.Random, pool: list[Tensor], x: Tensor) -> Tensor | None:
    if x.dim() != 4:
        return None
    c, (h, w) = x.shape[1], x.shape[2:]
    kind = choose.randrange(6)
    if kind == 0 and c <= 16:
        return F.conv2d(x, model.kernel[: choose.randint(1, 16), :c], stride=choose.choice([1, 2]), padding=1)
    if kind == 1 and h > 1 and w > 1:
        return F.max_pool2d(x, 2)
    if kind == 2:
        return F.avg_pool2d(x, 3, choose.choice([1, 2]), 1)
    if kind == 3:
        return F.interpolate(x, scale_factor=2, mode=choose.choice(["nearest", "bilinear"]))
    if kind == 4:
        return F.pad(x, [choose.randint(0, 2) for _ in range(4)])
    return F.adaptive_avg_pool2d(x, (choose.randint(1, 3), choose.randint(1, 3)))


KINDS = [
    _pointwise, _combined, _in_place, _write_to_view, _write_through_transpose, _view, _view, _permuted, _squeezed, _joined,
    _parts, _reduced, _product, _normed, _window, _window,
]  # fmt: skip


def case(seed: int, rounding: float = 0.0) -> tuple[RandomGraph, Tensor, tuple[int, ...]]:
    """A model, its input and a grid."""
    choose = random.Random(seed)
    shape = choose.choice([1, 2, 3, 4]), choose.choice([1, 2, 4, 6]), choose.randint(1, 9), choose.randint(1, 9)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    torch.manual_seed(seed)
    return RandomGraph(seed, rounding=rounding), x.requires_grad_(), choose.choice(GRIDS)
