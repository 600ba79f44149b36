"""A model whose parameters are cut is the sequential model: outputs, gradients, training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gridwise
from gridwise.models.parameters import gather_steps
from gridwise.nn.parameters.blocks import is_cut
from gridwise.testing import workers


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.MultiheadAttention(width, 3, batch_first=True)
        self.second = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 20), nn.Linear(20, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.mix(y, y, y, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Tokens(nn.Module):
    """Tied weights, a part that is frozen, one that is not used, and a block that is used twice."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(17, 12), nn.ModuleList([Block(), Block()])
        self.head, self.unused = nn.Linear(12, 17, bias=False), nn.Linear(12, 12)
        self.head.weight = self.embed.weight
        self.scale, self.recompute = nn.Parameter(torch.tensor(0.5)), recompute
        self.blocks[1].up.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed((x.abs() * 5).long() % 17) * self.scale
        for block in (*self.blocks, self.blocks[0]):
            y = checkpoint(block, y, use_reentrant=False) if self.recompute else block(y)
        return self.head(y)


class Image(nn.Module):
    """Convolutions, norms, writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(2, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.deep, self.group = nn.Conv2d(8, 8, 3, padding=1, groups=4), nn.GroupNorm(2, 8)
        self.up, self.last = nn.ConvTranspose2d(8, 6, 2, stride=2), nn.Conv2d(8, 3, 1)
        self.bias = nn.Parameter(torch.randn(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.down(x)).relu_()
        y = torch.relu_(self.group(self.deep(y)))
        return self.last(torch.cat([self.up(y), x], 1)) + self.bias


class Fourier(nn.Module):
    """Complex weights, as in an FNO."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.weight = nn.Conv2d(2, 4, 1), nn.Parameter(torch.randn(4, 4, 3, 3, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.fft.rfft2(self.lift(x))
        kept = torch.einsum("bixy,ioxy->boxy", modes[:, :, :3, :3], self.weight.conj())
        return torch.fft.irfft2(kept, s=x.shape[-2:]) + self.lift(x)


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x**3 @ weight

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return g @ weight.t() * 3 * x**2, (x**3).flatten(0, -2).t() @ g.flatten(0, -2)


class Odd(nn.Module):
    """A recurrent layer, a Function of the user, a parametrization, a parameter among the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(5, 6, batch_first=True)
        self.weight = nn.Parameter(torch.randn(6, 7))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(7, 4))
        self.offset = nn.Parameter(torch.randn(9))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = Cubed.apply(self.recurrent(x)[0], self.weight)
        return self.normed(y), self.offset


def images(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "tokens": (Tokens, (4, 6)),
    "recomputed": (lambda: Tokens(recompute=True), (4, 6)),
    "image": (Image, (4, 2, 8, 6)),
    "fourier": (Fourier, (4, 2, 8, 6)),
    "odd": (Odd, (4, 3, 5)),
}


@contextmanager
def small_messages(least: int = 64) -> Iterator[None]:
    """A message for almost every parameter."""
    before = gather_steps.FULL, gather_steps.SMALL
    gather_steps.FULL, gather_steps.SMALL = 16 * least, least
    try:
        yield
    finally:
        gather_steps.FULL, gather_steps.SMALL = before


def made(kind: str, batch_only: bool = True, **options: Any) -> tuple[Any, nn.Module, Tensor, Tensor]:
    """A model with cut parameters, the sequential one, this worker's block of the input, and the input."""
    make, shape = MODELS[kind]
    torch.manual_seed(0)
    alone = make().double()
    world = gridwise.world()
    grid = [world.size] + [1] * (len(shape) - 1)
    if not batch_only:
        grid[0], grid[max(1, len(shape) - 2)] = 2, world.size // 2
    P_x = world.create_cartesian_topology_partition(grid)
    x = images(*shape)
    model = gridwise.distribute(copy.deepcopy(alone), P_x, **{"parameters": "cut", **options})
    return model, alone, x[gridwise.local_slice(P_x, x.shape)].clone(), x


def loss_of(y: Any) -> Tensor:
    return sum(each.square().sum() for each in (y if isinstance(y, tuple) else (y,)))  # type: ignore[return-value]


def same(model: nn.Module, alone: nn.Module) -> None:
    """Compare parameters, buffers, and gradients by blocks."""
    full = gridwise.nn.full_state_dict(model)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(full[name], value, msg=lambda text, name=name: f"{name}: {text}")
    rank = gridwise.world().rank
    for (name, mine), theirs in zip(model.named_parameters(), alone.parameters(), strict=True):
        assert is_cut(mine) == (theirs.numel() >= gridwise.world().size > 1), name
        if theirs.grad is None:
            assert mine.grad is None, name
        else:
            expected = theirs.grad if not is_cut(mine) else mine.sharding.cut(theirs.grad, rank)
            torch.testing.assert_close(mine.grad, expected, msg=lambda text, name=name: f"{name}: {text}")


def train(model: Any, alone: nn.Module, x: Tensor, whole: Tensor, kind: Any, steps: int = 3) -> None:
    optimizers = [kind(each.parameters()) for each in (model, alone)]
    for _ in range(steps):
        for optimizer, each, given in zip(optimizers, (model, alone), (x, whole), strict=True):
            optimizer.zero_grad()
            loss_of(each(given)).backward()
        same(model, alone)
        for optimizer in optimizers:
            optimizer.step()
    same(model, alone)


@workers(4, transports=("mpi",))
@pytest.mark.parametrize("kind", MODELS)
def test_training_is_that_of_the_sequential_model(kind: str) -> None:
    with small_messages():
        for batch_only, prefetch_bytes in ((True, 0), (False, 4000)):
            model, alone, x, whole = made(kind, batch_only, prefetch_bytes=prefetch_bytes)
            train(model, alone, x, whole, lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3))


@workers(1, 3, transports=("gloo",))
def test_other_numbers_of_workers() -> None:
    model, alone, x, whole = made("image")
    train(model, alone, x, whole, lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9), steps=2)
