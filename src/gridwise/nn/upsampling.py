"""Upsampling and downsampling on a grid: each worker interpolates its block of the global output.

    nearest    y_o = x_i               i from torch's own kernel, asked about the global dim
    linear     y_o = (1 - w) x_i + w x_j     i = floor(s), j = min(i + 1, n - 1), w = s - i

with s the source coordinate of output o, from *global* coordinates, in the arithmetic of ATen: float64 for float64 and
float32 for all else. A kernel called on a block would count its coordinates from the block's edge, and be wrong. The
range of i and j over a worker's outputs is what it needs: one movement fetches it, then the dims are interpolated one
after the other, whole rows at a time. That is as fast as ATen's kernel, which takes all dims at once, element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import PartitionError, UnsupportedError
from ..grid import Interval, Layout, Needs, balanced_cuts, route
from ..partition import Partition
from .agreement import agree_layout
from .module import Module
from .move import HALVES, Move

NEAREST = {"nearest": torch.ops.aten.upsample_nearest1d, "nearest-exact": torch.ops.aten._upsample_nearest_exact1d}
LINEAR = ("linear", "bilinear", "trilinear")


@dataclass(frozen=True)
class Taps:
    """Along one dim, the sources of each output: row `first`, and for linear modes `second` with weight `weight`."""

    first: Tensor
    second: Tensor | None = None
    weight: Tensor | None = None

    def need(self, outputs: Interval) -> Interval:
        """The range of sources of the outputs ``[o0, o1)``; sources never decrease."""
        start, stop = outputs
        if start >= stop:
            return 0, 0
        last = self.first if self.second is None else self.second
        return int(self.first[start]), int(last[stop - 1]) + 1

    def cut(self, outputs: Interval, origin: int, device: torch.device) -> Taps:
        """The taps of the outputs ``[o0, o1)``, with sources counted from `origin`."""
        rows = slice(*outputs)
        if self.second is None or self.weight is None:
            return Taps((self.first[rows] - origin).to(device))
        return Taps(
            (self.first[rows] - origin).to(device),
            (self.second[rows] - origin).to(device),
            self.weight[rows].to(device),
        )

    def take(self, x: Tensor, dim: int) -> Tensor:
        """Interpolate `x` along `dim`."""
        start = x.index_select(dim, self.first)
        if self.second is None or self.weight is None:
            return start
        weight = self.weight.to(x.dtype).view([-1] + [1] * (x.dim() - dim - 1))
        return torch.lerp(start, x.index_select(dim, self.second), weight)


def nearest_taps(mode: str, n_in: int, n_out: int, scale: float | None, x: Tensor) -> Taps:
    """The sources that torch's kernel takes for tensors like `x`: it interpolates the row numbers themselves."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if n_in > 2**24 and dtype == torch.float32:
        raise UnsupportedError(f"mode {mode!r} of a dim of {n_in} rows needs float64: float32 cannot number them.")
    rows = torch.arange(n_in, dtype=dtype, device=x.device).view(1, 1, n_in)
    return Taps(NEAREST[mode](rows, [n_out], scale).view(n_out).long().cpu())


def linear_taps(n_in: int, n_out: int, scale: float | None, align_corners: bool, dtype: torch.dtype) -> Taps:
    """Sources and weights as ATen computes them (UpSample.h: area_pixel_compute_scale and what follows it)."""
    outputs = torch.arange(n_out, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    if n_in == n_out:
        rows = torch.arange(n_out)
        return Taps(rows, rows, torch.zeros_like(outputs))
    if align_corners:
        ratio = _divided(n_in - 1, n_out - 1, outputs) if n_out > 1 else outputs.new_zeros(())
        at = ratio * outputs
    else:
        ratio = outputs.new_tensor(1.0 / scale) if scale is not None and scale > 0 else _divided(n_in, n_out, outputs)
        at = (ratio * (outputs + 0.5) - 0.5).clamp(min=0)
    first = at.floor().long().clamp(max=n_in - 1)
    return Taps(first, (first + 1).clamp(max=n_in - 1), (at - first).clamp(0, 1))


def _divided(a: int, b: int, like: Tensor) -> Tensor:
    return like.new_tensor(a) / like.new_tensor(b)


class DistributedUpsample(Module):
    """`torch.nn.Upsample` of tensors ``(batch, channel, *space)`` on `P_x`, up or down.

    Parameters
    ----------
    P_x : the partition of input and output; every axis may be longer than 1
    size, scale_factor, mode, align_corners, recompute_scale_factor : as in `torch.nn.Upsample`; `size` is that of the
        global output. Modes: nearest, nearest-exact, linear, bilinear, trilinear.

    Notes
    -----
    Forward: fetch the rows that the own outputs need, interpolate. Adjoint: by autograd, the fetched rows' cotangents go
    back to their owners and are added. Bytes: the fetched rows. The output is balanced along space.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1])
    >>> gridwise.nn.DistributedUpsample(P_x, scale_factor=2)(torch.tensor([[[1.0, 2.0]]]))
    tensor([[[1., 1., 2., 2.]]])
    """

    def __init__(
        self,
        P_x: Partition,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        if mode not in NEAREST and mode not in LINEAR:
            raise UnsupportedError(
                f"`mode` (={mode!r}) is not offered.\n  fix: one of {', '.join(map(repr, (*NEAREST, *LINEAR)))}."
            )
        self.P_x, self.mode, self.align_corners = P_x, mode, align_corners
        self.size = tuple(size) if isinstance(size, Sequence) else size
        self.scale_factor = tuple(map(float, scale_factor)) if isinstance(scale_factor, Sequence) else scale_factor
        self.recompute_scale_factor = recompute_scale_factor
        self._takes_part(P_x, signature=self.extra_repr())

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        assert self._transport is not None
        x, me = input[0], self._transport.rank
        layout, agreed = agree_layout(self._transport, self._team, self._says, self.P_x.grid, x)
        shape = self._output_shape(layout.global_shape)
        taps = [self._taps(d, layout.global_shape[d], shape[d], x) for d in range(2, layout.grid.dim)]
        cuts = [balanced_cuts(n, p) for n, p in zip(shape[2:], layout.grid.shape[2:], strict=True)]
        self.layout = Layout(layout.grid, (*layout.cuts[:2], *cuts))
        own = Needs.of_layout(layout)
        rows = tuple(tuple(map(tap.need, pairwise(line))) for tap, line in zip(taps, cuts, strict=True))
        needs = Needs(layout.grid, (*own.intervals[:2], *rows), own.wrap)
        self._fetch = None
        if needs.intervals != own.intervals:
            self._fetch = Move(self._transport, self._team, self._says, route(layout, needs, me), torch.clone)
        fetched, block = needs.box(me), self.layout.block(me)
        self._local = [
            (d, tap.cut((block.start[d], block.stop[d]), fetched.start[d], x.device))
            for d, tap in enumerate(taps, start=2)
            if not _is_identity(tap, layout.global_shape[d])
        ]
        self._records = agreed.requires_grad

    def forward(self, x: Tensor) -> Tensor:
        if self._is_outside:
            return x.clone()
        y = x if self._fetch is None else self._move(x, self._fetch, self._records)
        if y.dtype in HALVES and self.mode in LINEAR:
            y = y.float()
        for dim, taps in self._local:
            y = taps.take(y, dim)
        return y.to(x.dtype) if y is not x else x.clone()

    def _output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The global output's shape, and torch's own refusal of arguments that do not fit."""
        try:
            y = F.interpolate(
                torch.empty(tuple(shape), device="meta"),
                self.size,
                self.scale_factor,
                self.mode,
                self.align_corners,
                self.recompute_scale_factor,
            )
        except (ValueError, NotImplementedError, RuntimeError, AssertionError) as error:
            raise PartitionError(f"{self._says} of a global input of shape {tuple(shape)}: {error}") from error
        return tuple(y.shape)

    def _taps(self, dim: int, n_in: int, n_out: int, x: Tensor) -> Taps:
        factor = self.scale_factor
        scale = None if factor is None or self.recompute_scale_factor else factor
        scale = float(scale[dim - 2]) if isinstance(scale, tuple) else scale
        if self.mode in NEAREST:
            return nearest_taps(self.mode, n_in, n_out, scale, x)
        return linear_taps(n_in, n_out, scale, bool(self.align_corners), x.dtype)

    def _problem_with(self, input: tuple) -> str | None:
        if len(input) != 1 or not isinstance(input[0], Tensor):
            return f"needs one tensor as its positional argument, got {len(input)} argument(s)"
        if self.mode in LINEAR and not input[0].is_floating_point():
            return f"interpolates floating-point tensors only in mode {self.mode!r}, got {input[0].dtype}"
        return None

    def extra_repr(self) -> str:
        given = [f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"]
        given += [f"mode={self.mode!r}"]
        given += [] if self.align_corners is None else [f"align_corners={self.align_corners}"]
        return ", ".join(given + ([] if not self.recompute_scale_factor else ["recompute_scale_factor=True"]))


def _is_identity(taps: Taps, n_in: int) -> bool:
    same = taps.first.numel() == n_in and bool((taps.first == torch.arange(n_in)).all())
    return same and (taps.weight is None or not taps.weight.any())
