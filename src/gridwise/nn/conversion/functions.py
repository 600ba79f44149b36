"""Torch functions and methods in a model's graph: which run on blocks as they are, and which become layers.

Tables only; `convert` applies them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from ...errors import UnsupportedError
from ...partition import Partition
from ..dropout import (
    DistributedAlphaDropout,
    DistributedDropout,
    DistributedDropout1d,
    DistributedDropout2d,
    DistributedDropout3d,
)
from ..upsampling import DistributedUpsample

ELEMENTWISE_NAMES = frozenset(
    """
    abs abs_ add add_ addcdiv addcmul bfloat16 celu clamp clamp_ clip clone contiguous cos cosh detach div div_
    divide double elu elu_ erf exp exp2 exp_ expm1 float gelu half hardshrink hardsigmoid hardswish hardtanh
    hardtanh_ iadd imul isub itruediv leaky_relu leaky_relu_ lerp log log10 log1p log2 logsigmoid maximum minimum
    mish mul mul_ multiply neg neg_ negative pow pow_ reciprocal relu relu6 relu_ rsqrt rsub selu selu_ sigmoid
    sigmoid_ sign silu sin sinh softplus softshrink softsign sqrt sqrt_ square sub sub_ subtract tan tanh tanh_
    tanhshrink threshold to true_divide truediv type type_as where
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
    int,
}
"""What is done with sizes."""

REDUCTIONS = frozenset(["mean", "sum", "amax", "amin", "logsumexp"])
ALONG = frozenset(["softmax", "log_softmax", "softmin", "cumsum"])
"""Functions that look along one dim and keep the others apart."""


def name_of(target: Any) -> str:
    """The name of a function or method in a graph, without module and trailing generation number."""
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


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


def interpolate(P: Partition, size: Any = None, scale_factor: Any = None, **options: Any) -> torch.nn.Module:
    if options.pop("antialias", False):
        raise UnsupportedError("interpolate: `antialias` (=True) is not offered on a grid.")
    return DistributedUpsample(P, tuple(size) if isinstance(size, Sequence) else size, scale_factor, **options)


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
for _d in (1, 2, 3):
    LAYERS[getattr(F, f"max_pool{_d}d")] = _of_dims(max_pool, _d)
    LAYERS[getattr(torch, f"max_pool{_d}d")] = _of_dims(max_pool, _d)
    for _kind, _name in (
        ("AvgPool", "avg_pool"),
        ("AdaptiveAvgPool", "adaptive_avg_pool"),
        ("AdaptiveMaxPool", "adaptive_max_pool"),
    ):
        LAYERS[getattr(F, f"{_name}{_d}d")] = _layer(_kind, _d)
