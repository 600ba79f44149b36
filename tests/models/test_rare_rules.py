"""Operators that few models have, on blocks of every grid: equal to torch's. Workers are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .equality import compare_on_threads
from .of_functions import Of, parameter

GRIDS = [(2, 1, 1, 1), (1, 2, 1, 2), (1, 1, 4, 1)]


def pairs(m: Any, x: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x.unflatten(3, (3, 2)).contiguous()).exp()).flatten(3)


def whole_numbers(x: Tensor, one: Tensor) -> Tensor:
    weight = torch.arange(144).view(4, 4, 3, 3) % 7 - 3
    return (F.conv2d(x, weight, weight[0, :, 0, 0], padding=1) + F.conv_transpose2d(x, weight, padding=1)) * one


OPERATORS: dict[str, Callable[[Any, Tensor], Any]] = {
    "cat with nothing": lambda m, x: torch.cat([x.new_empty(0), x, x.sin()], 2),
    "cat of unlike parts": lambda m, x: torch.cat([x[:, :, :1], x], 2),
    "stack": lambda m, x: torch.stack([x, m.p, x.cos()], 1),
    "unbind": lambda m, x: x.unbind(2)[1] * x.unbind(1)[0].sum(),
    "split": lambda m, x: x.split([1, 2, 4], 2)[2].sin() + x.split(2, 1)[0].sum(),
    "every other row": lambda m, x: x[:, :, ::2] * 2,
    "narrow from the end": lambda m, x: x.narrow(2, -3, 2) * 2,
    "a slice that is written to": lambda m, x: _written(x),
    "repeat": lambda m, x: x.repeat(2, 1, 3, 1) + x.repeat_interleave(3, 2).sum(),
    "roll": lambda m, x: x.roll((1, -2), (2, 3)) + torch.fft.fftshift(x, (1, 2)),
    "roll by whole turns": lambda m, x: x.roll((7, -12, 8), (2, 3, 0)) + x.roll((3, -10), (2, 2)),
    "flip": lambda m, x: x.flip(2).flip(1, 3),
    "permuted copies": lambda m, x: torch.permute_copy(x, (2, 0, 3, 1)),
    "movedim": lambda m, x: x.movedim((2, 0), (0, 1)).swapaxes(0, 2),
    "pairs": pairs,
    "pixels": lambda m, x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2) + F.channel_shuffle(x, 2),
    "rows by index": lambda m, x: x.index_select(2, m.rows)[:, :, :, m.rows[:2]],
    "rows by indices of each": lambda m, x: x.gather(2, m.rows.view(1, 1, 3, 1).expand(3, 4, 3, 6)),
    "a triangle": lambda m, x: x.tril(1) + x.triu(-1).sin(),
    "sorted": lambda m, x: x.sort(2)[0] + x.cumsum(1) + x.cummax(2)[0] + x.topk(2, 2)[0].sum(),
    "halves": lambda m, x: F.glu(x, 1),
    "fourier": lambda m, x: torch.fft.irfft2(torch.fft.rfft2(x), s=(7, 6)) + torch.fft.fftn(x, s=(7, 6)).real,
    "one fourier": lambda m, x: torch.fft.ifft(torch.fft.fft(x, dim=2), dim=1).real,
    "windows": lambda m, x: x.unfold(2, 3, 2).sum(-1) + x.unfold(3, 2, 1)[:, :, :3].amax((3, 4))[..., None],
    "columns": lambda m, x: F.unfold(x, (3, 2), padding=(1, 0), stride=2),
    "moments": lambda m, x: x.var(2) + x.std((1, 2))[:, None] + x.logsumexp(2) + x.prod(2),
    "few sums": lambda m, x: x.sum((1, 2)).mean(0, keepdim=True) + x.mean(2, keepdim=True).sum((0, 1, 2)),
    "convolutions of whole numbers": lambda m, x: x + whole_numbers((9 * x.detach()).long(), m.p.new_ones(1)),
    "samples at places of the input": lambda m, x: F.grid_sample(
        m.p, x[:, :2].movedim(1, 3).tanh(), align_corners=True
    ),
    "samples of the input": lambda m, x: F.grid_sample(x, m.places.expand(3, -1, -1, -1).tanh(), align_corners=False),
    "rms norm": lambda m, x: F.rms_norm(x, (6,), m.p[0, 0, 0]) + F.layer_norm(x, (7, 6), m.p[0, 0]),
    "layer norm over channels": lambda m, x: F.layer_norm(x, (4, 7, 6), m.p[0], m.p[1]),
    "dropout that is off": lambda m, x: x * torch.native_dropout(x.detach(), 0.5, False)[0],
    "dropout with its mask": lambda m, x: x * torch.native_dropout(x.detach(), 0.5, True)[1],
    "a new tensor": lambda m, x: x * x.new_full(x.shape, 2.0) + torch.ones(x.shape, dtype=x.dtype),
}


def _written(x: Tensor) -> Tensor:
    y = x * 2
    y[:, :, 1:6:2] += 1
    return y


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_rare_operators(name: str, grid: tuple[int, ...]) -> None:
    model = Of(OPERATORS[name], p=parameter(3, 4, 7, 6), places=parameter(1, 5, 4, 2))
    model.register_buffer("rows", torch.tensor([5, 0, 2]))
    errors, _ = compare_on_threads(model, [parameter(3, 4, 7, 6).requires_grad_()], grid)
    assert max(errors.values()) < 1e-10, errors


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(4),
    "batch, without parameters": lambda: nn.BatchNorm2d(4, affine=False, track_running_stats=False),
    "batch, mean over batches": lambda: nn.BatchNorm2d(4, momentum=None),
    "batch, evaluated": lambda: nn.BatchNorm2d(4).eval(),
    "instance": lambda: nn.InstanceNorm2d(4),
    "instance, tracked": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "instance, evaluated": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True).eval(),
    "group": lambda: nn.GroupNorm(2, 4),
    "group, one": lambda: nn.GroupNorm(1, 4, affine=False),
}


@pytest.mark.parametrize("grid", [*GRIDS, (2, 3, 1, 1)])
@pytest.mark.parametrize("name", NORMS)
def test_norms_and_their_running_statistics(name: str, grid: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(NORMS[name](), nn.Sigmoid()).double()
    for p in model.parameters():
        nn.init.normal_(p)
    errors, _ = compare_on_threads(model, [parameter(3, 4, 7, 6).requires_grad_()], grid)
    assert max(errors.values()) < 1e-10, errors


def test_a_row_of_a_large_tensor_is_spread() -> None:
    model = Of(lambda m, x: x.select(1, 2).sin())
    errors, program = compare_on_threads(model, [parameter(2, 3, 40000).requires_grad_()], (1, 3, 1))
    assert max(errors.values()) < 1e-12, errors
    assert program.outputs[0].layout.grid.size == 3
