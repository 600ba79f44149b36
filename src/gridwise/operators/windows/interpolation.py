"""Interpolation: the input rows of each output row, and their weights, follow from coordinates in the *global* tensor.

A kernel called on a box would count from the box's edge and be wrong. It computes the outputs if it is right in every dim:

    whole      the box has all of the dim
    shifted    the ratio of rows is a power of two, and the input begins where output and input rows are aligned,
               a little before the first wanted row; the surplus is cropped

Otherwise rows are selected and mixed by their global indices, dim by dim. Dims whose extent does not change are then
not left to the kernel: it also adds a row with weight 0, and zero times infinity is nan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...grid import Box, Interval
from ..call import OperatorCall
from ..formats import wide
from ..on_boxes import Local
from ..table import NotOnBoxes, operator
from .interpolation_weights import (
    NEAREST,
    InterpolationWeights,
    cubic_weights,
    is_vectorised,
    linear_weights,
    nearest_weights,
    smooth_weights,
)
from .one_dim import cropped

LINEAR = {
    "linear": ("upsample_linear1d", "", ""),
    "bilinear": ("", "upsample_bilinear2d", ""),
    "trilinear": ("", "", "upsample_trilinear3d"),
}
CUBIC = {"bicubic": ("", "upsample_bicubic2d", "")}
KERNELS = NEAREST | LINEAR | CUBIC
"""For each mode, the operators for one, two and three dims of space."""
MODES = {name: mode for mode, names in KERNELS.items() for name in names if name}
SMOOTH = {"_upsample_bilinear2d_aa": "bilinear", "_upsample_bicubic2d_aa": "bicubic"}


@operator(*MODES)
def interpolation(call: OperatorCall) -> Local:
    x = call.tensors[0]
    made, dtype = Interpolation(call, lambda: x.order == (0, *range(2, x.dim), 1)), call.result.dtype
    return Local.planning(made.needs, lambda box: _as(dtype, made.planned(box)), 2.0 ** (x.dim - 2))


@operator(*SMOOTH)
def smooth_interpolation(call: OperatorCall) -> Local:
    """Antialiased interpolation, always by rows."""
    x = call.tensors[0]
    if not x.dtype.is_floating_point:
        raise NotOnBoxes(f"antialiasing of {x.dtype}")
    scales, corners, dtype = scales_of(call), bool(call["align_corners"]), call.result.dtype
    sizes = zip(x.shape[2:], call.result.shape[2:], scales, strict=True)
    lines = [smooth_weights(SMOOTH[call.kind], *size, corners, x.dtype) for size in sizes]

    def needs(box: Box) -> list[Box]:
        rows = [line.need(outputs) for line, outputs in zip(lines, _space(box), strict=True)]
        return [Box.of_intervals([*_lead(box), *rows])]

    def run(box: Box, x: Tensor) -> Tensor:
        x = wide(x)
        for d, (line, outputs) in reversed(list(enumerate(zip(lines, _space(box), strict=True), 2))):
            x = line.cut(outputs, line.need(outputs)[0], x.device).take(x, d)
        return x.to(dtype)

    return Local(needs, run, float(sum(len(line.rows) for line in lines)))


@dataclass(frozen=True)
class KernelRows:
    """How the rows of one dim are computed: from `need`, mixed by their weights.

    Or the kernel makes `made` rows with `scale`, of which the first `extra` are dropped; `made` is 0 where it would be
    wrong.
    """

    need: Interval
    made: int = 0
    scale: float | None = None
    extra: int = 0


class Interpolation:
    """The operator; `is_channels_last` says how all of the input lies in memory.

    That is asked only where torch's output depends on it.
    """

    def __init__(self, call: OperatorCall, is_channels_last: Callable[[], bool]) -> None:
        self.mode, x = MODES[call.kind], call.tensors[0]
        if not x.dtype.is_floating_point and self.mode not in NEAREST:
            raise NotOnBoxes(f"interpolation of {x.dtype}")
        self.corners = bool(call.given.get("align_corners"))
        self.kernel = getattr(torch.ops.aten, call.kind)
        self.extents, self.outputs = x.shape[2:], call.result.shape[2:]
        # if no extent changes, torch's bicubic CUDA kernel copies, whatever the scale; its CPU kernel does not
        copies = x.device.type == "cuda" and self.mode in CUBIC and self.extents == self.outputs
        self.scales = [1.0] * len(self.extents) if copies else scales_of(call)
        self.x, self.shape, self.is_channels_last = x, call.result.shape, is_channels_last
        self._planned: dict[tuple[int, Interval], KernelRows] = {}

    def needs(self, box: Box) -> list[Box]:
        return [Box.of_intervals([*_lead(box), *(rows.need for rows in self._rows(box))])]

    def planned(self, box: Box) -> Callable[[Tensor], Tensor]:
        """Makes the output on the box; of half precision perhaps in float32."""
        rows = self._rows(box)
        if not all(line.made for line in rows):
            return lambda x: self._by_rows(x, rows, box)
        corners = () if self.mode in NEAREST else (self.corners,)
        given = [line.made for line in rows], *corners, *(line.scale for line in rows)
        crops = [(d, line.extra, line.made - line.extra) for d, line in enumerate(rows, 2)]
        return lambda x: cropped(self.kernel(x, *given), crops)

    def _by_rows(self, y: Tensor, rows: Sequence[KernelRows], box: Box) -> Tensor:
        y = y if self.mode in NEAREST else wide(y)
        weights, _ = self._weights
        lines = list(zip(weights, rows, _space(box), strict=True))
        for d, (weight, line, outputs) in reversed(list(enumerate(lines, 2))):  # last dim first: its rows are short
            y = weight.cut(outputs, line.need[0], y.device).take(y, d)
        return y

    @cached_property
    def _weights(self) -> tuple[list[InterpolationWeights], list[bool]]:
        """What the rows of each dim are made of, in torch's arithmetic, and whether all its kernels take the same.

        If they do not, a kernel called on a box may be another than that for the whole, and the gradient of the general
        one, which takes the rows of the vectorised one, is not that of its output.
        """
        x, dims = self.x, list(zip(self.extents, self.outputs, self.scales, strict=True))
        if self.mode not in NEAREST:
            find = linear_weights if self.mode in LINEAR else cubic_weights
            return [find(*dim, self.corners, x.dtype) for dim in dims], [True] * len(dims)
        weights, others = (
            [nearest_weights(self.mode, *dim, x.dtype, x.device, vectorised) for dim in dims]
            for vectorised in (False, True)
        )
        alike = [torch.equal(one.rows[0], other.rows[0]) for one, other in zip(weights, others, strict=True)]
        if not all(alike) and x.device.type != "cuda" and is_vectorised(self.shape, self.is_channels_last):
            weights = others
        return weights, alike

    def _rows(self, box: Box) -> list[KernelRows]:
        found = []
        for key in enumerate(_space(box)):
            if key not in self._planned:
                self._planned[key] = self._plan(*key)
            found.append(self._planned[key])
        return found

    def _plan(self, d: int, outputs: Interval) -> KernelRows:
        n_in, n_out, scale = self.extents[d], self.outputs[d], self.scales[d]
        weights, alike = self._weights[0][d], self._weights[1][d]
        # the gradient of a bicubic dim that keeps its extent is that of a copy
        kept = self.mode in CUBIC and scale is not None and n_in == n_out != scale * n_in
        if outputs == (0, n_out) and alike and not kept:
            return KernelRows((0, n_in), n_out, scale)
        ratio = 1 / scale if scale else n_in / max(1, n_out)
        if alike and math.frexp(ratio)[0] == 0.5 and not self.corners and outputs[0] < outputs[1]:
            rows = shifted(outputs, weights, ratio)
            if rows.made != rows.need[1] - rows.need[0]:  # ATen's linear kernel just copies if the extents are equal
                return rows
        return KernelRows(weights.need(outputs))


def shifted(outputs: Interval, weights: InterpolationWeights, ratio: float) -> KernelRows:
    """How the kernel makes the rows `outputs` from a box; `ratio`, of input to output rows, is a power of two."""
    start, stop = outputs
    period = max(1, int(1 / ratio))
    first, last = weights.need(outputs)
    at = start - start % period
    while at > 0 and int(at * ratio) > first:  # the kernel would take the box's first row for the tensor's
        at -= period
    return KernelRows((int(at * ratio), last), stop - at, 1 / ratio, start - at)


def scales_of(call: OperatorCall) -> list[float | None]:
    """The scale factor of each dim of space, where torch's kernel takes one."""
    x, factors = call.tensors[0], call.given.get("scale_factors")
    if factors is None:
        names = ("scales",) if x.dim == 3 else tuple(f"scales_{axis}" for axis in "dhw"[5 - x.dim :])
        factors = [call.given.get(name) for name in names]
    return [None if factor is None else float(factor) for factor in factors]


def _as(dtype: torch.dtype, run: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: run(x).to(dtype)


def _space(box: Box) -> list[Interval]:
    return list(zip(box.start[2:], box.stop[2:], strict=True))


def _lead(box: Box) -> list[Interval]:
    return list(zip(box.start[:2], box.stop[:2], strict=True))
