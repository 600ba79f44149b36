"""Forty common operators in other dtypes, with odd numbers, and with tensors that lie oddly in memory.

python -m conformance.dtypes [name ...] [--fraction 0.05] [--seed 0] [--fresh]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .on_threads import check
from .samples import Sample, name_of, operators, samples, ways
from .suite import VERSION, Entry, Suite

COMMON = (
    "add", "sub", "mul", "div", "pow", "exp", "log", "sqrt", "tanh", "sigmoid", "nn.functional.relu", "nn.functional.gelu",
    "abs", "clamp", "maximum", "where", "sum", "mean", "amax", "max", "argmax", "var", "cumsum", "prod", "softmax",
    "log_softmax", "logsumexp", "matmul", "bmm", "nn.functional.linear", "nn.functional.conv2d", "nn.functional.max_pool2d",
    "nn.functional.avg_pool2d", "nn.functional.layer_norm", "nn.functional.batch_norm", "cat", "gather", "sort",
    "nn.functional.pad", "nn.functional.interpolate",
)  # fmt: skip
LOW = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
ODD = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "-0": -0.0}


def _with_number(number: float, sample: Sample) -> Sample | None:
    """With one number in every seventh place of each tensor."""

    def put(x: Tensor) -> Tensor:
        y = x.detach().clone()
        if y.is_floating_point():
            y.view(-1)[::7] = number
        return y.requires_grad_(x.requires_grad)

    return replace(sample, tensors=tuple(put(x) for x in sample.tensors))


def _empty(sample: Sample) -> Sample | None:
    """Without rows along the first dim of all tensors that have as many as the one that is cut."""
    rows = sample.tensors[sample.first].shape[0]

    def without_rows(x: Tensor) -> Tensor:
        y = x.detach()
        return (y[:0] if y.dim() and y.shape[0] == rows else y).clone().requires_grad_(x.requires_grad)

    return replace(sample, tensors=tuple(without_rows(x) for x in sample.tensors))


def _channels_last(sample: Sample) -> Sample | None:
    def laid(x: Tensor) -> Tensor:
        format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
        return x.detach().clone(memory_format=format).requires_grad_(x.requires_grad)

    made = tuple(laid(x) for x in sample.tensors)
    return replace(sample, tensors=made) if not all(x.is_contiguous() for x in made) else None


def _expanded(sample: Sample) -> Sample | None:
    """With one row of the tensor that is cut in place of all along its last dim, at one place in memory."""

    def spread(i: int, x: Tensor) -> Tensor:
        y = x.detach()
        if i != sample.first or not y.shape[-1]:
            return x
        return y[..., :1].clone().expand(y.shape).requires_grad_(x.requires_grad)

    return replace(sample, tensors=tuple(spread(i, x) for i, x in enumerate(sample.tensors)))


CHANGES: dict[str, Callable[[Sample], Sample | None]] = {
    **{name: partial(_with_number, number) for name, number in ODD.items()},
    "empty": _empty,
    "channels_last": _channels_last,
    "expanded": _expanded,
}


def odd_samples(op: Any) -> Iterator[Sample]:
    """The samples of an operator in other dtypes, and in float64 with each of the changes."""
    for name, dtype in LOW.items():
        if dtype in op.dtypes:
            yield from (replace(each, variant=name) for each in samples(op, dtype, has_variants=False))
    for each in samples(op, has_variants=False):
        for name, change in CHANGES.items():
            made = change(each)
            if made is not None:
                yield replace(made, variant=name)


def entries() -> list[Entry]:
    """The operators, with their variants of one name as one."""
    return [Entry(name_of(op), partial(odd_samples, op)) for op in operators() if op.name in COMMON]


SUITE = Suite(
    "dtypes",
    "Odd numbers, dtypes and memory formats",
    f"{len(COMMON)} common operators of torch {VERSION}'s database through `distribute`, cut in all ways: in "
    "float32, bfloat16 and complex; in float64 with NaN, inf, -inf or -0.0 in every seventh place, without rows, "
    "in channels_last, and with one row expanded. Outputs and all gradients are compared with torch's own; in "
    "bfloat16 within four units in the last place of the largest number, or four times what a change of the "
    "inputs by some units changes. Where an input of `var` is infinite, its result is NaN on both sides; torch's "
    "gradient is NaN in some elements and -inf in others, that of blocks is NaN in all. Likewise of `prod`: where an input "
    "is infinite, or NaN beside zeros, torch's gradient is NaN in that element, that of blocks in others too. `layer_norm` "
    "of a single number in float32 is its bias; on blocks the difference from the mean is rounded, and divided by the "
    "square root of `eps`.",
    entries,
    ways,
    check,
)
run = SUITE.run

if __name__ == "__main__":
    SUITE.main()
