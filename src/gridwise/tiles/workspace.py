"""What torch's kernels allocate for a moment, besides their result."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ..grid import Box
from .graph import GlobalValue, Operation


def bytes_of(value: GlobalValue, box: Box) -> int:
    return (prod(box.shape) if box.start else 1) * value.spec.dtype.itemsize


def workspace(operation: Operation, hulls: Mapping[GlobalValue, Box]) -> int:
    """Bytes: blocked copies of a convolution's tensors, indices of a pooling, or half of what another makes."""
    given = [bytes_of(v, hulls[v]) for v in operation.inputs if v in hulls and not v.is_fixed]
    out = operation.outputs[0]
    made = bytes_of(out, hulls[out]) if out in hulls else 0
    if operation.name.startswith("conv"):
        return sum(given) + made
    if "pool" in operation.name.split(" ")[0]:
        return made * (1 + 8 // out.spec.dtype.itemsize)
    return made // 2
