"""Random operators: numbers depend on the global index of each element (`random_stream`), not on boxes.

`run` gets a `RandomStream` before the box.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...grid import Box, Shape
from ..call import OperatorCall, TensorSpec
from ..labels import by_labels, none_of, numbered
from ..on_boxes import Local
from ..pointwise import aligned
from ..table import NotOnBoxes, operator
from .random_stream import Elements, RandomStream


@operator("dropout", "feature_dropout", "native_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(call: OperatorCall) -> Local:
    """Elements, or whole channels, set to zero; the identity where dropout is off."""
    x, p, with_mask = call.tensors[0], call["p"], call.kind == "native_dropout"
    if call["train"] is False or p == 0:
        if with_mask:
            return Local(lambda box: [box], lambda box, x: (x, torch.ones_like(x, dtype=torch.bool)))
        return Local(lambda box: [box], lambda box, x: x)
    if "alpha" in call.kind:
        raise NotOnBoxes("alpha dropout draws in an order of its own")
    dims = 2 if "feature" in call.kind else x.dim
    rest = (1,) * (x.dim - dims)

    def run(stream: RandomStream, box: Box, given: Tensor) -> Any:
        kept = stream.kept(given, p, Elements(x.shape[:dims], Box(box.start[:dims], box.stop[:dims])))
        y = stream.scaled(given, kept.view(*kept.shape, *rest), p)
        return (y, kept.bool()) if with_mask else y

    return Local(lambda box: [box], run, 4.0, draws=True)


@operator("bernoulli")
def bernoulli(call: OperatorCall) -> Local:
    """Ones, each with the probability that a number or the tensor says, and zeros."""
    x = call.tensors[0]
    if len(call.tensors) > 1:
        raise NotOnBoxes("random numbers whose distribution is given by a second tensor")
    if "p" not in call.given:
        return Local(
            lambda box: [box], lambda stream, box, p: stream.chosen(p, Elements(x.shape, box)), 8.0, draws=True
        )
    p, dtype, device = call["p"], x.dtype, x.device

    def run(stream: RandomStream, box: Box, *_: Tensor) -> Tensor:
        like = torch.empty(0, dtype=dtype, device=device)
        return stream.kept(like, 1 - p, Elements(x.shape, box)).to(dtype)

    return Local(lambda box: [none_of(x.shape)], run, 8.0, draws=True)


Numbers = Callable[[RandomStream, Elements, torch.dtype, torch.device], Tensor]


def drawn(call: OperatorCall, numbers: Numbers) -> Local:
    """Random numbers in a shape; of tensor arguments only shape, dtype and device matter."""
    result = call.result
    if result.dtype.is_complex:
        raise NotOnBoxes("random numbers that are complex")
    shape, dtype, device = result.shape, result.dtype, result.device
    nothing = [none_of(each.shape) for each in call.tensors]

    def run(stream: RandomStream, box: Box, *_: Tensor) -> Tensor:
        return numbers(stream, Elements(shape, box), dtype, device)

    return Local(lambda box: nothing, run, 8.0, draws=True)


@operator("rand", "rand_like", "uniform")
def uniform(call: OperatorCall) -> Local:
    low, high = call.given.get("from", 0.0), call.given.get("to", 1.0)
    if call.kind != "uniform":
        return drawn(call, RandomStream.uniform)
    return drawn(call, lambda stream, *where: stream.uniform(*where) * (high - low) + low)


@operator("randn", "randn_like", "normal", "normal_functional")
def normal(call: OperatorCall) -> Local:
    mean, std = call.given.get("mean", 0.0), call.given.get("std", 1.0)
    if isinstance(mean, TensorSpec) or isinstance(std, TensorSpec):
        return around(call)
    if call.kind.startswith("randn"):
        return drawn(call, RandomStream.normal)
    return drawn(call, lambda stream, *where: stream.normal(*where) * std + mean)


def around(call: OperatorCall) -> Local:
    """Normal numbers with a mean or standard deviation for each element; these have no gradient."""
    shape, dtype, labels = call.result.shape, call.result.dtype, numbered("d", call.result.dim)
    given = call.given.get("mean", 0.0), call.given.get("std", 1.0)
    needs = by_labels(call, [aligned(labels, each.dim) for each in call.tensors], labels).needs

    def run(stream: RandomStream, box: Box, *tensors: Tensor) -> Tensor:
        left = iter(tensors)
        mean, std = (next(left).detach() if isinstance(each, TensorSpec) else each for each in given)
        return stream.normal(Elements(shape, box), dtype, tensors[0].device) * std + mean

    return Local(needs, run, 8.0, draws=True)


@operator("exponential")
def exponential(call: OperatorCall) -> Local:
    rate = call["lambd"]
    return drawn(call, lambda stream, *where: stream.uniform(*where).neg_().log1p_().div_(-rate))


@operator("randint", "randint_like")
def integers(call: OperatorCall) -> Local:
    if isinstance(call["high"], TensorSpec):
        raise NotOnBoxes("random numbers whose distribution is given by a tensor")
    low, high = int(call.given.get("low", 0) or 0), int(call["high"])
    return drawn(call, lambda stream, *where: stream.integers(low, high, *where))


@operator("rrelu")
def rrelu(call: OperatorCall) -> Local:
    """A leaky ReLU with a random slope for each negative element, or with their mean where it does not train."""
    x, low, high = call.tensors[0], float(call["lower"]), float(call["upper"])
    if not call["training"]:
        slope = (low + high) / 2
        return Local(lambda box: [box], lambda box, x: torch.nn.functional.leaky_relu(x, slope))

    def run(stream: RandomStream, box: Box, given: Tensor) -> Tensor:
        slopes = stream.uniform(Elements(x.shape, box), x.dtype, given.device) * (high - low) + low
        return torch.where(given <= 0, given * slopes, given)

    return Local(lambda box: [box], run, 8.0, draws=True)


@operator("randperm")
def permutation(call: OperatorCall) -> Local:
    """A random permutation: the sorting order of random numbers."""
    shape: Shape = call.result.shape
    dtype, device = call.result.dtype, call.result.device

    def run(stream: RandomStream, box: Box) -> Tensor:
        order = stream.uniform(Elements(shape), torch.float64, device).argsort()
        return order[box.slices].to(dtype)

    return Local(lambda box: [], run, 32.0, draws=True)
