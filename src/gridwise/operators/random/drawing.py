"""Random operators: numbers depend on the global index of each element (`random_stream`), not on boxes.

`run` gets a `RandomStream` before the box.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...grid import Box, Shape
from ..call import OperatorCall, TensorSpec
from ..labels import by_labels, kept, none_of, numbered
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


@operator("exponential", "cauchy", "geometric", "log_normal", "random")
def by_kind(call: OperatorCall) -> Local:
    """Other distributions: by transforming uniform or normal numbers, or as torch draws them."""
    kind, given = call.kind, call.given
    named = {
        name: given[name] for name in ("lambd", "median", "sigma", "p", "mean", "std", "from", "to") if name in given
    }

    def numbers(stream: RandomStream, elements: Elements, dtype: torch.dtype, device: torch.device) -> Tensor:
        if stream.sequential:
            return stream.filled(lambda x, generator: getattr(x, f"{kind}_")(*named.values(), generator=generator),
                                 elements, dtype, device)  # fmt: skip
        where = elements, torch.float64, device
        match kind:
            case "exponential":
                made = stream.uniform(*where).neg_().log1p_().div_(-named["lambd"])
            case "cauchy":
                made = stream.uniform(*where).sub_(0.5).mul_(math.pi).tan_() * named["sigma"] + named["median"]
            case "geometric":
                made = stream.uniform(*where).neg_().log1p_().div_(math.log1p(-named["p"])).ceil_().clamp_min_(1)
            case "log_normal":
                made = (stream.normal(*where) * named["std"] + named["mean"]).exp_()
            case _:
                low, high = named.get("from", 0), named.get("to")
                return stream.integers(low, last_of(dtype) + 1 if high is None else high, elements, dtype, device)
        return made.to(dtype)

    return drawn(call, numbers)


def last_of(dtype: torch.dtype) -> int:
    """The largest of torch's random integers of a dtype: of floats, up to which all are representable."""
    if dtype.is_floating_point:
        return round(2 / torch.finfo(dtype).eps)
    return 1 if dtype == torch.bool else int(torch.iinfo(dtype).max)


@operator("multinomial")
def multinomial(call: OperatorCall) -> Local:
    """Categories drawn by their weights in the last dim, which is whole."""
    p, count, again, shape = call.tensors[0], call["num_samples"], call["replacement"], call.result.shape
    lead = numbered("n", p.dim - 1)
    needs = by_labels(call, [[*lead, "k"]], [*lead, "s"], whole=["s"]).needs

    def run(stream: RandomStream, box: Box, given: Tensor) -> Tensor:
        whole = Box((*box.start[:-1], 0), (*box.stop[:-1], shape[-1]))
        if bool(((given < 0) | ~given.isfinite()).any()):
            raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
        if not again or count == 1:
            own = Elements(p.shape, Box((*box.start[:-1], 0), (*box.stop[:-1], p.shape[-1])))
            if stream.sequential:
                waits = stream.filled(
                    lambda x, generator: x.exponential_(1, generator=generator), own, p.dtype, given.device
                )
            else:
                waits = stream.uniform(own, torch.float64, given.device).neg_().log1p_().neg_()
            return kept((given / waits).topk(count, -1)[1], box, [p.dim - 1])
        ends = given.cumsum(-1)
        ends = ends / ends[..., -1:]
        ends[..., -1] = 1
        places = stream.uniform(Elements(shape, whole), torch.float64, given.device)
        return kept(torch.searchsorted(ends, places.to(ends.dtype)), box, [p.dim - 1])

    return Local(needs, run, 8.0, draws=True)


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
