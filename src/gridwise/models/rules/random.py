"""Random operators: numbers depend on the global index of each element, not on the grid (`operators.random.random_stream`)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UnsupportedError
from ...grid import Box
from ...operators.random.random_stream import Elements, RandomStream
from ..placement import Cut, GlobalTensor, Placement, Replicated, Want
from .by_needs import by_needs
from .call import Call, Placed
from .table import rule


def _own(call: Call) -> tuple[Placement, Box | None, list[Want]]:
    """The placement of the first tensor, this worker's block (None for all of it), and the wants that keep it there."""
    layout = call.tensors[0].layout
    return (Replicated(), None, [Replicated()]) if layout is None else (Cut(layout), call.block(layout), [None])


@rule(
    "dropout", "dropout_", "feature_dropout", "feature_dropout_", "alpha_dropout", "feature_alpha_dropout", "native_dropout",
)  # fmt: skip
def dropout(call: Call) -> Placed:
    """Elements, or whole channels, set to zero; the identity where dropout is off."""
    x, p, with_mask = call.tensors[0], call["p"], call.kind == "native_dropout"
    placement, block, wants = _own(call)
    if call["train"] is False or p == 0 or not x.volume:
        off = (lambda x: (x, torch.ones_like(x, dtype=torch.bool))) if with_mask else (lambda x: x)
        return Placed(placement, off, wants)
    inplace, dims = call.kind.endswith("_"), 2 if "feature" in call.kind else x.dim
    shape = x.shape[:dims]
    own = None if block is None else Box(block.start[:dims], block.stop[:dims])
    elements = Elements(shape, own, call.result.order if dims == x.dim else ())
    rest = (1,) * (x.dim - dims)

    def run(stream: RandomStream, x: Tensor) -> Any:
        kept = stream.kept(x, p, elements)
        kept = kept.view(*kept.shape, *rest)
        if "alpha" in call.kind:
            return _alpha(x, kept.to(x.dtype), p, inplace)
        y = stream.scaled(x, kept, p, inplace)
        return (y, kept.bool()) if with_mask else y

    return Placed(placement, run, wants, draws=True)


def _alpha(x: Tensor, kept: Tensor, p: float, inplace: bool) -> Tensor:
    """Elements that are not kept become the smallest value of SELU; mean and variance stay as they are, as torch has it."""
    if p == 1:
        return x.mul_(0) if inplace else x * 0
    least = 1.7580993408473766
    scale = 1 / math.sqrt((least**2 * p + 1) * (1 - p))
    shift = kept.sub(1).mul_(least * scale).add_(least * scale * p)
    return x.mul_(kept * scale).add_(shift) if inplace else x * (kept * scale) + shift


@rule(
    "bernoulli", "bernoulli_", "uniform", "uniform_", "normal", "normal_", "normal_functional", "rand_like", "randn_like",
    "randint_like",
)  # fmt: skip
def like_a_tensor(call: Call) -> Placed:
    """Random numbers in the shape of a tensor."""
    x, result, kind = call.tensors[0], call.result, call.kind.rstrip("_").removesuffix("_functional")
    if len(call.tensors) > 1 or (kind == "normal" and any(isinstance(call[k], GlobalTensor) for k in ("mean", "std"))):
        return _around(call)
    placement, block, wants = _own(call)
    elements, given = Elements(result.shape, block, result.order), call.given
    where = elements, result.dtype, x.device
    low, high = int(given.get("low", 0) or 0), int(given.get("high", 0) or 0)

    def numbers(stream: RandomStream, x: Tensor) -> Tensor:
        match kind:
            case "bernoulli" if "p" in given:
                return stream.kept(x, 1 - given["p"], elements).to(x.dtype)
            case "bernoulli":
                return stream.chosen(x, elements)
            case "rand_like":
                return stream.uniform(*where)
            case "randn_like":
                return stream.normal(*where)
            case "randint_like":
                return stream.integers(low, high, *where)
            case "uniform":
                return stream.uniform(*where) * (given["to"] - given["from"]) + given["from"]
        return stream.normal(*where) * given["std"] + given["mean"]

    if call.kind.endswith("_") and call.written:
        return Placed(placement, lambda stream, x: x.copy_(numbers(stream, x)), wants, draws=True)
    if kind.endswith("_like"):
        return Placed(placement, numbers, wants, draws=True)
    return Placed(placement, lambda stream, x: _without_gradient(x, numbers(stream, x)), wants, draws=True)


def _around(call: Call) -> Placed:
    """KnownNumbers whose distribution is given by tensors, which have no gradient."""
    placed = by_needs(call)

    def run(stream: RandomStream, *tensors: Tensor) -> Any:
        numbers = placed.run(stream, *tensors)
        for x in tensors:
            numbers = _without_gradient(x.reshape(x.shape[x.dim() - min(x.dim(), numbers.dim()) :]), numbers)
        return numbers

    return replace(placed, run=run)


def _without_gradient(x: Tensor, numbers: Tensor) -> Tensor:
    """The numbers, with zeros as the gradient of `x`, as torch has it."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return numbers
    return torch.where(torch.zeros((), dtype=torch.bool, device=x.device), x, numbers)


@rule("rrelu", "rrelu_")
def rrelu(call: Call) -> Placed:
    """Negative elements times a random slope."""
    lower, upper, (placement, block, wants) = float(call["lower"]), float(call["upper"]), _own(call)
    inplace, elements = call.kind.endswith("_") and call.written, Elements(call.result.shape, block)
    if not call["training"]:
        slope = (lower + upper) / 2
        return Placed(placement, lambda x: F.leaky_relu(x, slope, inplace), wants)

    def run(stream: RandomStream, x: Tensor) -> Tensor:
        if stream.sequential:
            if block is not None:
                raise UnsupportedError(
                    f"{call.name}: torch draws slopes of negative elements only, so the numbers of a block depend on all "
                    "elements before it.\n  fix: no sequential_random() around it, or an input that every worker has whole."
                )
            return (
                torch.rrelu_(x, lower, upper, True, stream.generator)
                if inplace
                else torch.rrelu(x, lower, upper, True, stream.generator)
            )
        slopes = stream.uniform(elements, x.dtype, x.device) * (upper - lower) + lower
        slopes = slopes.masked_fill_(~(x <= 0), 1.0)
        return x.mul_(slopes) if inplace else x * slopes

    return Placed(placement, run, wants, draws=True)


@rule("rand", "randn", "randint")
def of_a_size(call: Call) -> Placed:
    """Random numbers of a given shape: replicated if few, else cut like the model's input."""
    result, placement = call.result, call.made_of_a_size()
    block = call.block(placement.layout) if isinstance(placement, Cut) else None
    where = Elements(result.shape, block), result.dtype, result.device

    def run(stream: RandomStream) -> Tensor:
        if call.kind == "randint":
            return stream.integers(int(call.given.get("low", 0) or 0), int(call["high"]), *where)
        return stream.uniform(*where) if call.kind == "rand" else stream.normal(*where)

    return Placed(placement, run, draws=True)


@rule("randperm")
def permutation(call: Call) -> Placed:
    """A random permutation, the same on all workers: the sorting order of random numbers."""
    n = call["n"]

    def run(stream: RandomStream) -> Tensor:
        if stream.sequential:
            return torch.randperm(n, dtype=call.result.dtype, device=call.result.device, generator=stream.generator)
        return stream.uniform(Elements((n,)), torch.float64, call.result.device).argsort().to(call.result.dtype)

    return Placed(Replicated(), run, draws=True)
