"""Torch functions and methods in a model's graph: which run on blocks as they are, and which become layers.

Tables; `convert` applies them. What needs more than a table has a rule: see `joining` and its neighbours.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from ...partition import Partition
from ..layers.dropout import (
    DistributedAlphaDropout,
    DistributedDropout,
    DistributedDropout1d,
    DistributedDropout2d,
    DistributedDropout3d,
)
from ..layers.upsampling import KERNELS, DistributedUpsample
from .state import OnGrid
from .walk import given

ELEMENTWISE_NAMES = frozenset(
    """
    abs abs_ acos add add_ addcdiv addcmul bfloat16 celu clamp clamp_ clip clone contiguous cos cosh detach div div_
    eq floor ge gt isfinite isnan le logical_and logical_not logical_or lt masked_fill ne ones_like round zeros_like
    divide double elu elu_ erf exp exp2 exp_ expm1 float gelu half hardshrink hardsigmoid hardswish hardtanh
    hardtanh_ iadd imul isub itruediv leaky_relu leaky_relu_ lerp log log10 log1p log2 logsigmoid maximum minimum
    mish mul mul_ multiply neg neg_ negative pow pow_ reciprocal relu relu6 relu_ rsqrt rsub selu selu_ sigmoid
    sigmoid_ sign silu sin sinh softplus softshrink softsign sqrt sqrt_ square sub sub_ subtract tan tanh tanh_
    tanhshrink threshold to true_divide truediv type type_as where
    acosh and_ asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bool ceil clamp_max clamp_min erfc
    floor_divide floordiv fmod frac heaviside hypot int invert isinf logaddexp logical_xor long mod nan_to_num or_
    remainder sgn trunc xlogy xor
    """.split()  # noqa: SIM905
)
"""Functions and methods that treat each element by itself; several tensors must lie alike."""

NUMBERS = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.truediv,
    operator.mod,
    operator.neg,
    operator.pow,
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    int,
    math.ceil,
    math.floor,
    math.sqrt,
}
"""What is done with sizes."""

OF_PARAMETERS = frozenset(
    """
    amax amin cat chunk expand flatten getitem linear matmul mean norm permute repeat reshape softmax squeeze stack std sum t
    transpose unsqueeze var view
    """.split()  # noqa: SIM905
)
"""What may be done with parameters alone, besides what is elementwise."""

ALIASES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "x1": "input", "x2": "other"}
"""Names of arguments that torch takes as well."""


def max_pool(
    P: Partition,
    dims: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> torch.nn.Module:
    return _layer("MaxPool", dims)(P, kernel_size, stride, padding, dilation, return_indices, ceil_mode)


def pad(P: Partition, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> torch.nn.Module:
    dims = P.dim - 2
    widths = tuple(pad) + (0,) * (2 * dims - len(pad))
    if mode == "constant":
        return _layer("ConstantPad", dims)(P, widths, 0.0 if value is None else value)
    kinds = {"reflect": "ReflectionPad", "replicate": "ReplicationPad", "circular": "CircularPad"}
    return _layer(kinds[mode], dims)(P, widths)


def interpolate(
    P: Partition,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.nn.Module:
    size = tuple(size) if isinstance(size, Sequence) else size
    return DistributedUpsample(P, size, scale_factor, mode, align_corners, recompute_scale_factor)


def dropout(kind: type[DistributedDropout]) -> Callable[..., torch.nn.Module]:
    def make(P: Partition, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.nn.Module:
        return kind(P, p if training else 0.0, inplace)

    return make


def _layer(kind: str, dims: int) -> Callable[..., torch.nn.Module]:
    """The layer of that name, looked up when it is made: all of them are there then."""

    def make(P: Partition, *args: Any, **kwargs: Any) -> torch.nn.Module:
        from ... import nn

        return getattr(nn, f"Distributed{kind}{dims}d")(P, *args, **kwargs)

    return make


def _of_dims(make: Callable[..., torch.nn.Module], dims: int) -> Callable[..., torch.nn.Module]:
    return lambda P, *args, **kwargs: make(P, dims, *args, **kwargs)


LAYERS: dict[Any, Callable[..., torch.nn.Module]] = {
    F.pad: pad,
    torch._C._nn.pad: pad,
    F.interpolate: interpolate,
    F.dropout: dropout(DistributedDropout),
    F.dropout1d: dropout(DistributedDropout1d),
    F.dropout2d: dropout(DistributedDropout2d),
    F.dropout3d: dropout(DistributedDropout3d),
    F.alpha_dropout: dropout(DistributedAlphaDropout),
}
"""Functions that become a layer, made when they are called with new arguments."""
DROPOUTS = frozenset("dropout dropout1d dropout2d dropout3d alpha_dropout".split())  # noqa: SIM905
for _d in (1, 2, 3):
    LAYERS[getattr(F, f"max_pool{_d}d")] = _of_dims(max_pool, _d)
    LAYERS[getattr(torch, f"max_pool{_d}d")] = _of_dims(max_pool, _d)
    for _kind, _name in (
        ("AvgPool", "avg_pool"),
        ("AdaptiveAvgPool", "adaptive_avg_pool"),
        ("AdaptiveMaxPool", "adaptive_max_pool"),
    ):
        LAYERS[getattr(F, f"{_name}{_d}d")] = _layer(_kind, _d)


def problem_with(node: Any, name: str) -> str | None:
    """What a layer that is made at the call could not do; said before anything runs."""
    if name == "interpolate":
        if given(node, 6, "antialias", False):
            return "with antialias"
        mode = given(node, 3, "mode", "nearest")
        return f"in mode {mode!r}" if mode not in KERNELS else None
    if given(node, 7 if name.startswith("max") else 2, "return_indices", False) is True and "max_pool" in name:
        return "with indices"
    return None


def padded_dims(node: Any, state: OnGrid) -> list[int]:
    """The dims that `F.pad` pads; all that it might, where the widths are not numbers."""
    widths = given(node, 1, "pad", ())
    pairs = (
        list(zip(widths[::2], widths[1::2], strict=True)) if isinstance(widths, tuple | list) else [None] * state.dim
    )
    return sorted(state.dim - 1 - i for i, pair in enumerate(pairs) if pair != (0, 0))


def space_of(name: str, state: OnGrid) -> int:
    """How many of the last dims a function changes."""
    return int(name[-2]) if name[-1] == "d" and name[-2].isdigit() else state.dim - 2
