"""Upsampling and downsampling on a grid: each worker interpolates its block of the global output.

The input rows of each output row, and their weights, follow from coordinates in the *global* tensor; a kernel called on
a block would count from the block's edge and be wrong. A worker fetches the range of input rows that its outputs need.
Then ATen's kernel computes the outputs, if it is correct in every dim:

    whole      the dim is not cut
    shifted    the ratio of rows is a power of two, and the block starts where output and input rows are aligned,
               a little before the first wanted row; the surplus is cropped

Otherwise rows are selected and mixed by their global indices, dim by dim. Dims whose extent does not change are then
not left to the kernel: it also adds a row with weight 0, and zero times infinity is nan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import PartitionError, UnsupportedError
from ...grid import Interval, Layout, Needs, Shape, balanced_cuts, route
from ...operators.formats import HALVES, memory_format_of
from ...partition import Partition
from ..engine.agreement import Ballot, agree_layout
from ..engine.arguments import problem_with_tensor
from ..engine.autocast import dtype_after
from ..engine.carrier import Move
from ..engine.module import Module
from ..windows.interpolation import (
    NEAREST,
    InterpolationWeights,
    cubic_weights,
    is_vectorised,
    linear_weights,
    nearest_weights,
)

LINEAR = {
    "linear": ("upsample_linear1d", "", ""),
    "bilinear": ("", "upsample_bilinear2d", ""),
    "trilinear": ("", "", "upsample_trilinear3d"),
}
CUBIC = {"bicubic": ("", "upsample_bicubic2d", "")}
KERNELS = NEAREST | LINEAR | CUBIC


@dataclass(frozen=True)
class Dim:
    """How one worker computes its rows of one dim: fetch `need`, and mix rows by `weights`, which count from its first.

    Or let the kernel make `made` rows with `scale` and drop the first `extra`; `made` is 0 where it would be wrong.
    """

    need: Interval
    weights: InterpolationWeights
    made: int = 0
    scale: float | None = None
    extra: int = 0


def shifted(outputs: Interval, weights: InterpolationWeights, ratio: float, device: torch.device) -> Dim:
    """How the kernel makes the rows `outputs` from a block; `ratio`, of input to output rows, is a power of two."""
    start, stop = outputs
    period = max(1, int(1 / ratio))
    first, last = weights.need(outputs)
    at = start - start % period
    while at > 0 and int(at * ratio) > first:  # the kernel would take the block's first row for the tensor's
        at -= period
    origin = int(at * ratio)
    return Dim((origin, last), weights.cut(outputs, origin, device), stop - at, 1 / ratio, start - at)


def _check_mode(mode: str) -> None:
    if mode not in KERNELS:
        raise UnsupportedError(f"`mode` (={mode!r}) is not offered.\n  fix: one of {', '.join(map(repr, KERNELS))}.")


class DistributedUpsample(Module):
    """`torch.nn.Upsample` of tensors ``(batch, channel, *space)`` on `P_x`, up or down.

    Parameters
    ----------
    P_x : the partition of input and output; every axis may be longer than 1
    size, scale_factor, mode, align_corners, recompute_scale_factor : as in `torch.nn.Upsample`; `size` is the size
        of the global output. Modes: nearest, nearest-exact, linear, bilinear, trilinear, bicubic.

    Shape
    -----
    - input: ``(batch, channel, *space)``; this worker's block of it
    - output: like the input, with the extents `size`, or `scale_factor` times those of the input

    Notes
    -----
    Forward: fetch the rows that this worker's outputs need, and interpolate. Adjoint: by autograd; the cotangents of
    fetched rows go back to their owners and are added. Bytes: the fetched rows. The output is balanced along space.

    Gradients are those of the output. Torch's own, on a CPU, are not where a `scale_factor` other than 1 keeps an extent,
    or in mode 'nearest' one other than 2 doubles it: 5 rows by 1.1 are [0, 0, 1, 2, 3] of a 1-d, a 3-d or a large 2-d
    tensor, but their gradient in torch is that of a copy (so it fails `torch.autograd.gradcheck`). In a 2-d output of at
    most 128 rows and columns together, and with 4 channels or more in `torch.channels_last`, torch copies such rows, and
    so does this layer.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1])
    >>> gridwise.nn.DistributedUpsample(P_x, scale_factor=2)(torch.tensor([[[1.0, 2.0]]]))
    tensor([[[1., 1., 2., 2.]]])
    """

    _keeps_plans = True
    _settings = ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")
    _fixed = ("P_x",)

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
        _check_mode(mode)
        self.P_x, self.mode, self.align_corners = P_x, mode, align_corners
        self.size = tuple(size) if isinstance(size, Sequence) else size
        self.scale_factor = tuple(map(float, scale_factor)) if isinstance(scale_factor, Sequence) else scale_factor
        self.recompute_scale_factor = recompute_scale_factor
        self._takes_part(P_x, signature=self.extra_repr())

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        _check_mode(self.mode)
        x = input[0]
        layout, agreed = agree_layout(self.P_x.transport, self._team, self._title, self.P_x.grid, x)
        self._plan(layout, self._output_shape(layout.global_shape), x, lambda: self._agree_channels_last(x))
        self._records = agreed.requires_grad

    def _plan(self, layout: Layout, shape: Shape, x: Tensor, is_channels_last: Callable[[], bool]) -> None:
        """Plan for an input with this `layout`, and the dtype and device of `x`; nothing is sent.

        `is_channels_last` says how the global input lies in memory; it is asked only where torch's output depends on that.
        """
        me = self.P_x.transport.rank
        cuts = [balanced_cuts(n, p) for n, p in zip(shape[2:], layout.grid.shape[2:], strict=True)]
        self.layout = Layout(layout.grid, (*layout.cuts[:2], *cuts))
        # if no extent changes, torch's bicubic CUDA kernel copies, whatever the scale; its CPU kernel does not
        copies = x.is_cuda and self.mode in CUBIC and shape[2:] == layout.global_shape[2:]
        scales = [1.0 if copies else self._scale(d) for d in range(2, len(shape))]
        dims = list(zip(layout.cuts[2:], cuts, scales, strict=True))
        weights = [self._weights(there[-1], here[-1], scale, x) for there, here, scale in dims]
        alike = [True] * len(dims)
        if self.mode in NEAREST:
            others = [self._weights(there[-1], here[-1], scale, x, True) for there, here, scale in dims]
            alike = [torch.equal(one.rows[0], other.rows[0]) for one, other in zip(weights, others, strict=True)]
            if not all(alike) and not x.is_cuda and is_vectorised(shape, is_channels_last):
                weights = others
        plans = [self._planned(*dim, *how, x) for dim, how in zip(dims, zip(weights, alike, strict=True), strict=True)]
        own = Needs.of_layout(layout)
        rows = tuple(tuple(dim.need for dim in line) for line in plans)
        needs = Needs(layout.grid, (*own.intervals[:2], *rows), own.wrap)
        self._fetch = None
        if needs.intervals != own.intervals:
            self._fetch = Move(self.P_x.transport, self._team, self._title, route(layout, needs, me), torch.clone)
        index = layout.grid.index_of(me)
        self._dims = [line[i] for line, i in zip(plans, index[2:], strict=True)]
        self._block = self.layout.block(me)
        self._kernel = getattr(torch.ops.aten, KERNELS[self.mode][len(cuts) - 1])

    def _weights(
        self, n_in: int, n_out: int, scale: float | None, x: Tensor, vectorised: bool = False
    ) -> InterpolationWeights:
        """What the rows of one dim are made of, in torch's arithmetic."""
        if self.mode in NEAREST:
            return nearest_weights(self.mode, n_in, n_out, scale, x, vectorised)
        find = linear_weights if self.mode in LINEAR else cubic_weights
        return find(n_in, n_out, scale, bool(self.align_corners), x.dtype)

    def _planned(
        self,
        cuts: Sequence[int],
        target: Sequence[int],
        scale: float | None,
        weights: InterpolationWeights,
        alike: bool,
        x: Tensor,
    ) -> list[Dim]:
        """How the rows of each place along the axis are computed; `alike`: whether all kernels of torch take the same.

        If they do not, a kernel called on a block may be another than that for the whole, and the gradient of the general
        one, which takes the rows of the vectorised one, is not that of its output. So it is with a bicubic dim that keeps
        its extent: its gradient is that of a copy.
        """
        n_in, n_out = cuts[-1], target[-1]
        kept = self.mode in CUBIC and scale is not None and n_in == n_out != scale * n_in
        if len(target) == 2 and alike and not kept:
            return [Dim((0, n_in), weights.cut((0, n_out), 0, x.device), n_out, scale)]
        ratio = 1 / scale if scale else n_in / max(1, n_out)
        shifts = alike and math.frexp(ratio)[0] == 0.5 and not self.align_corners
        return [self._at_place(outputs, weights, ratio if shifts else None, x) for outputs in pairwise(target)]

    def _at_place(self, outputs: Interval, weights: InterpolationWeights, ratio: float | None, x: Tensor) -> Dim:
        if ratio is not None and outputs[0] < outputs[1]:
            dim = shifted(outputs, weights, ratio, x.device)
            if dim.made != dim.need[1] - dim.need[0]:  # ATen's linear kernel just copies if the extents are equal
                return dim
        need = weights.need(outputs)
        return Dim(need, weights.cut(outputs, need[0], x.device))

    def forward(self, x: Tensor) -> Tensor:
        if self._is_outside:
            return x.clone()
        return self._interpolated(x)

    def _interpolated(self, x: Tensor) -> Tensor:
        """This worker's block of the output."""
        if self._fetch is not None:
            y = self._move(x, self._fetch, self._records)
        else:
            y = x.detach().requires_grad_() if self._records and not x.requires_grad else x
        made = dtype_after(lambda one: F.interpolate(one, (1,) * (x.dim() - 2), mode=self.mode), x)
        if not self._block.volume:
            return y.sum(dtype=made).expand(self._block.shape)
        y = self._by_kernel(y) if all(dim.made for dim in self._dims) else self._by_rows(y)
        return y.to(made).contiguous(memory_format=memory_format_of(x))

    def _by_kernel(self, y: Tensor) -> Tensor:
        corners = () if self.mode in NEAREST else (bool(self.align_corners),)
        y = self._kernel(y, [dim.made for dim in self._dims], *corners, *(dim.scale for dim in self._dims))
        for d, dim in enumerate(self._dims, 2):
            if dim.extra:
                y = y.narrow(d, dim.extra, dim.made - dim.extra)
        return y

    def _by_rows(self, y: Tensor) -> Tensor:
        y = y.float() if y.dtype in HALVES and self.mode not in NEAREST else y
        for d, dim in reversed([*enumerate(self._dims, 2)]):  # last dim first: its rows are short, and few as yet
            y = dim.weights.take(y, d)
        return y

    def _output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The global output's shape; raises what torch raises for arguments that do not fit."""
        try:
            y = F.interpolate(
                torch.empty(
                    (max(1, shape[0]), *shape[1:]), device="meta"
                ),  # torch refuses an empty batch, but only here
                self.size,
                self.scale_factor,
                "bilinear" if self.mode in CUBIC else self.mode,  # the same shape, computed much faster
                self.align_corners,
                self.recompute_scale_factor,
            )
        except (ValueError, TypeError, NotImplementedError, RuntimeError, AssertionError, ZeroDivisionError) as error:
            raise PartitionError(f"{self._title} of a global input of shape {tuple(shape)}: {error}") from error
        if 0 in (*shape[1:], *y.shape[2:]):  # torch refuses this too, but not on the meta device
            raise PartitionError(f"{self._title} of a global input of shape {tuple(shape)} would be empty.")
        return (shape[0], *y.shape[1:])

    def _scale(self, d: int) -> float | None:
        """The scale factor that torch would pass to its kernel for a dim."""
        factor = None if self.recompute_scale_factor else self.scale_factor
        return float(factor[d - 2]) if isinstance(factor, tuple) else factor

    def _structure_of(self, input: tuple) -> Hashable:
        found = super()._structure_of(input)
        return (found, memory_format_of(input[0])) if self.mode in NEAREST else found

    def _agree_channels_last(self, x: Tensor) -> bool:
        """Whether the global input lies in memory with its channels last, as far as its blocks tell."""
        ballot = Ballot()
        says_nothing = not x.numel() or (x.is_contiguous() and x.movedim(1, -1).is_contiguous())
        vote = ballot.equal(None if says_nothing else memory_format_of(x) is not torch.contiguous_format)
        ballot.count(self.P_x.transport, self._team, self._title)
        return bool(ballot.read(vote))

    def _problem_with(self, input: tuple) -> str | None:
        if problem := problem_with_tensor(input):
            return problem
        x = input[0]
        if not x.is_floating_point() and (self.mode not in NEAREST or x.dtype != torch.uint8):
            return f"interpolates floating-point tensors only in mode {self.mode!r}, got {x.dtype}"
        return None

    def extra_repr(self) -> str:
        given = [f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"]
        given += [f"mode={self.mode!r}"]
        given += [] if self.align_corners is None else [f"align_corners={self.align_corners}"]
        return ", ".join(given + ([] if not self.recompute_scale_factor else ["recompute_scale_factor=True"]))
