"""Inner products over the grid, and random tensors: what the checks share."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ..comm.transports.base import Transport
from ..errors import GridwiseError
from ..partition import world


class CheckFailed(GridwiseError, AssertionError):
    """A check found a difference; raised on all workers with the same numbers.

    Examples
    --------
    >>> issubclass(gridwise.testing.CheckFailed, AssertionError)
    True
    """


def inner(a: Sequence[Tensor], b: Sequence[Tensor], transport: Transport | None = None) -> float:
    """``sum_i <a_i, b_i>`` over all tensors and all workers, in double precision.

    Complex tensors are taken as pairs of reals, as autograd does, so the result is always real.
    """
    transport = transport or world().transport
    total = sum(
        (_real_dot(x, y) for x, y in zip(a, b, strict=True)), torch.zeros((), dtype=torch.float64, device="cpu")
    )
    return float(transport.all_sum(total, transport.everyone, "an inner product"))


def _real_dot(a: Tensor, b: Tensor) -> Tensor:
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    return (a.detach().double() * b.detach().double()).sum().cpu()


def random_like(x: Tensor, name: str, seed: int = 0) -> Tensor:
    """A normally distributed tensor like `x`, from its own generator: different on each worker and for each name."""
    rank = world().transport.rank
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {rank} {seed}".encode()))
    dtype = x.dtype if x.dtype.is_floating_point or x.is_complex() else torch.float64
    return torch.randn(x.shape, dtype=dtype, generator=generator, device="cpu").to(x.device)
