"""Interpolation along one dim: which rows of the input each row of the output is made of, and with what weights.

    nearest    y_o = x_i               i from torch's own kernel, run on the global dim
    linear     y_o = (1 - w) x_i + w x_j     i = floor(s), j = min(i + 1, n - 1), w = s - i
    cubic      y_o = sum_k c_k(w) x_(i + k - 1)     k = 0 .. 3, rows outside repeat the edge, c with A = -0.75
    smooth     y_o = sum_k f((i + k - s) r) x_(i + k) / sum_k f(...)     antialiased: r = min(1, n_out / n), any k

with s the source coordinate of output o, from *global* coordinates, in the arithmetic of ATen (UpSample.h): float64 for
float64 and float32 for all else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UnsupportedError
from ...grid import Interval, Shape

NEAREST = {
    "nearest": ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    "nearest-exact": ("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
}
CUBIC_A = -0.75


@dataclass(frozen=True)
class InterpolationWeights:
    """Along one dim, the source rows of each output and their weights: a tensor for all first sources, and so on.

    Nearest has no weights. Of two sources only the second has its weight given; the first has the rest.
    """

    rows: tuple[Tensor, ...]
    weights: tuple[Tensor, ...] = ()

    def need(self, outputs: Interval) -> Interval:
        """The range of sources of the outputs ``[o0, o1)``; sources never decrease."""
        start, stop = outputs
        if start >= stop:
            return 0, 0
        return int(self.rows[0][start]), int(self.rows[-1][stop - 1]) + 1

    def cut(self, outputs: Interval, origin: int, device: torch.device) -> InterpolationWeights:
        """The sources, counted from `origin`, and weights of the outputs ``[o0, o1)``."""
        own = slice(*outputs)
        return InterpolationWeights(
            tuple((rows[own] - origin).to(device) for rows in self.rows),
            tuple(weights[own].to(device) for weights in self.weights),
        )

    def take(self, x: Tensor, dim: int) -> Tensor:
        """Interpolate `x` along `dim`."""
        parts = [x.index_select(dim, rows) for rows in self.rows]
        along = [-1] + [1] * (x.dim() - dim - 1)
        weights = [weight.to(x.dtype).view(along) for weight in self.weights]
        if not weights:
            return parts[0]
        if len(weights) == 1:
            weights = [1 - weights[0], *weights]  # weighted as in torch: `lerp` turns infinity into nan
        y = parts[0] * weights[0]
        for part, weight in zip(parts[1:], weights[1:], strict=True):
            y = torch.addcmul(y, part, weight)
        return y


def nearest_weights(
    mode: str,
    n_in: int,
    n_out: int,
    scale: float | None,
    dtype: torch.dtype,
    device: torch.device,
    vectorised: bool = False,
) -> InterpolationWeights:
    """The sources that torch's kernel takes for such tensors, found by interpolating the row numbers themselves.

    On a CPU torch has a `vectorised` kernel besides the general one (`is_vectorised`). It calculates in float32 whatever
    the dtype, and in mode 'nearest' it copies a dim that keeps its extent, whatever the scale, and doubles one likewise.
    """
    dtype = torch.float64 if dtype == torch.float64 else torch.float32
    if n_in > 2**24 and dtype == torch.float32:
        raise UnsupportedError(f"mode {mode!r} of a dim of {n_in} rows needs float64: float32 cannot number them.")
    on_cpu = device.type == "meta" or vectorised  # a plan has no numbers
    rows = torch.arange(n_in, dtype=dtype, device="cpu" if on_cpu else device).view(1, 1, n_in)
    if vectorised:  # as it is for any four channels that are the last dim in memory
        rows = rows.unsqueeze(-1).repeat(1, 4, 1, 1).contiguous(memory_format=torch.channels_last)
        made = getattr(torch.ops.aten, NEAREST[mode][1])(rows, [n_out, 1], scale, None)[0, 0]
    else:
        made = getattr(torch.ops.aten, NEAREST[mode][0])(rows, [n_out], scale)
    return InterpolationWeights((made.reshape(n_out).long().cpu(),))


def is_vectorised(shape: Shape, is_channels_last: Callable[[], bool]) -> bool:
    """Whether torch computes an output of `shape` on a CPU by its vectorised kernel for nearest rows.

    So say `_use_vectorized_kernel_cond_2d` and `_3d` in ATen (UpSampleKernel.cpp).
    """
    is_small = len(shape) == 4 and sum(shape[2:]) <= 128
    return is_small or (len(shape) > 3 and shape[1] > 3 and is_channels_last())


def linear_weights(
    n_in: int, n_out: int, scale: float | None, align_corners: bool, dtype: torch.dtype
) -> InterpolationWeights:
    """Two sources and the weight of the second; a dim that keeps its extent is copied, whatever the scale."""
    if n_in == n_out:
        rows = torch.arange(n_out, device="cpu")
        return InterpolationWeights((rows, rows), (torch.zeros(n_out, device="cpu"),))
    at = _coordinates(n_in, n_out, scale, align_corners, dtype).clamp(min=0)
    first = at.floor().long().clamp(max=n_in - 1)
    return InterpolationWeights((first, (first + 1).clamp(max=n_in - 1)), ((at - first).clamp(0, 1),))


def cubic_weights(
    n_in: int, n_out: int, scale: float | None, align_corners: bool, dtype: torch.dtype
) -> InterpolationWeights:
    """Four sources and their weights, those of Keys' cubic convolution.

    >>> taps = cubic_weights(4, 8, None, False, torch.float64)
    >>> taps.need((2, 4)), [float(weight[0]) for weight in taps.weights]
    ((0, 4), [-0.03515625, 0.26171875, 0.87890625, -0.10546875])
    """
    at = _coordinates(n_in, n_out, scale, align_corners, dtype)
    middle = at.float().floor().long().clamp(max=n_in - 1)  # ATen takes the floor in float32
    w = (at - middle).clamp(0, 1)
    rows = tuple((middle + k).clamp(0, n_in - 1) for k in (-1, 0, 1, 2))
    return InterpolationWeights(rows, (_outer(w + 1), _inner(w), _inner(1 - w), _outer(2 - w)))


def smooth_weights(
    mode: str, n_in: int, n_out: int, scale: float | None, align_corners: bool, dtype: torch.dtype
) -> InterpolationWeights:
    """All sources under a filter that is as wide as the ratio of the extents, for antialiasing (ATen: `..._aa`).

    >>> taps = smooth_weights("bilinear", 8, 4, None, False, torch.float64)
    >>> taps.need((1, 2)), [float(weight[1]) for weight in taps.weights]
    ((1, 5), [0.125, 0.375, 0.375, 0.125])
    """
    outputs = torch.arange(n_out, dtype=torch.float64 if dtype == torch.float64 else torch.float32, device="cpu")
    ratio = _ratio(n_in, n_out, scale, align_corners, outputs)
    least = 1.0 if mode == "bilinear" else 2.0
    support = least * max(1.0, float(ratio))
    middle = ratio * (outputs + 0.5)
    first = (middle - support + 0.5).long().clamp(min=0)
    count = (middle + support + 0.5).long().clamp(max=n_in) - first
    rows, weights = [], []
    narrow = 1.0 / ratio if ratio >= 1 else torch.ones_like(ratio)
    for k in range(int(count.max())):
        at = ((first + k - middle + 0.5) * narrow).abs()
        weight = (1 - at).clamp(min=0) if mode == "bilinear" else _keys(at)
        rows.append(torch.minimum(first + k, first + count - 1))
        weights.append(torch.where(k < count, weight, 0.0))
    total = torch.stack(weights).sum(0)
    return InterpolationWeights(tuple(rows), tuple(weight / total for weight in weights))


def _keys(at: Tensor) -> Tensor:
    """Keys' cubic with A = -0.5, at distances from its middle."""
    a = -0.5
    inner = ((a + 2) * at - (a + 3)) * at * at + 1
    outer = (((at - 5) * at + 8) * at - 4) * a
    return torch.where(at < 1, inner, torch.where(at < 2, outer, 0.0))


def _inner(t: Tensor) -> Tensor:
    return ((CUBIC_A + 2) * t - (CUBIC_A + 3)) * t * t + 1


def _outer(t: Tensor) -> Tensor:
    return ((CUBIC_A * t - 5 * CUBIC_A) * t + 8 * CUBIC_A) * t - 4 * CUBIC_A


def _coordinates(n_in: int, n_out: int, scale: float | None, align_corners: bool, dtype: torch.dtype) -> Tensor:
    """The source coordinate of each output (ATen's area_pixel_compute_scale and area_pixel_compute_source_index)."""
    outputs = torch.arange(n_out, dtype=torch.float64 if dtype == torch.float64 else torch.float32, device="cpu")
    ratio = _ratio(n_in, n_out, scale, align_corners, outputs)
    return ratio * outputs if align_corners else ratio * (outputs + 0.5) - 0.5


def _ratio(n_in: int, n_out: int, scale: float | None, align_corners: bool, like: Tensor) -> Tensor:
    if align_corners:
        return _divided(n_in - 1, n_out - 1, like) if n_out > 1 else like.new_zeros(())
    return like.new_tensor(1.0 / scale) if scale is not None and scale > 0 else _divided(n_in, n_out, like)


def _divided(a: int, b: int, like: Tensor) -> Tensor:
    return like.new_tensor(a) / like.new_tensor(b)
