"""What torch's kernels allocate for a moment, besides their result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from ..costs.convolutions import Convolution, is_large
from ..grid import Box
from .graph import GlobalValue, Operation

Hulls = Mapping[GlobalValue, Box]


def bytes_of(value: GlobalValue, box: Box) -> int:
    return (prod(box.shape) if box.start else 1) * value.spec.dtype.itemsize


def workspace(operation: Operation, hulls: Hulls, backward: bool = False) -> int:
    """Bytes: copies that a convolution makes, indices of a pooling, or half of what another operator makes."""
    out = operation.outputs[0]
    if out not in hulls or 0 in hulls[out].shape:
        return 0
    convolution = _convolution(operation, hulls, backward)
    if convolution is not None:
        given = operation.inputs[0]
        dense = bytes_of(given, hulls[given])  # a box of a larger tensor is copied first
        windows = 0  # of a small float32 input, which torch unrolls like those of other dtypes
        if given.spec.device.type == "cpu" and given.spec.dtype == torch.float32:
            windows = convolution.unrolled_elements * given.spec.dtype.itemsize
        return dense + windows + convolution.workspace(given.spec.device.type)
    made = bytes_of(out, hulls[out])
    if "pool" in operation.name.split(" ")[0]:
        return made * (1 + 8 // out.spec.dtype.itemsize)
    return made // 2


def _convolution(operation: Operation, hulls: Hulls, backward: bool) -> Convolution | None:
    """The call of torch's kernel on a tile."""
    kind = operation.name.split(" ")[0].split(".")[0]
    if not kind.startswith("conv") or len(operation.inputs) < 2:
        return None
    x, weight = operation.inputs[:2]
    dims = len(weight.shape) - 2
    if len(x.shape) != dims + 2:
        return None
    given, kernel, made = (_meta(v, hulls) for v in (x, weight, operation.outputs[0]))
    ones: Sequence[Any] = (1,) * dims
    is_strided = max(weight.shape[2:], default=1) == 1 and x.shape[2:] != operation.outputs[0].shape[2:]
    stride: Sequence[Any] = (2,) * dims if is_strided else ones  # that of larger windows changes nothing
    groups = max(1, x.shape[1] // weight.shape[1]) if "transpose" not in kind else 1
    wanted = (True, True) if backward else None
    threads = torch.get_num_threads()
    is_part = len(x.shape) > 3 and is_large(x.shape)
    return Convolution(given, kernel, made, stride, ones, "transpose" in kind, groups, wanted, threads, is_part)


def _meta(value: GlobalValue, hulls: Hulls) -> torch.Tensor:
    shape = hulls[value].shape if value in hulls else value.shape
    return torch.empty(shape, dtype=value.spec.dtype, device="meta")
