"""Losses: the terms on blocks, then one sum; the loss is one number, the same on all workers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...nn.engine.copy_and_sum import AllSum
from ...operators.formats import HALVES
from ...operators.losses import MEAN, NONE
from ..placement import Cut, Partial, Replicated, Want, with_dim, without_dims
from .by_needs import by_needs
from .call import Call, NothingCut, Placed
from .pointwise import common_layout, needed_by
from .table import rule


@rule(
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "kl_div", "soft_margin_loss", "poisson_nll_loss",
)  # fmt: skip
def elementwise(call: Call) -> Placed:
    shape = tuple(torch.broadcast_shapes(*(value.shape for value in call.tensors)))
    target = common_layout(call, shape)
    wants: list[Want] = [needed_by(target, value) for value in call.tensors]
    reduction = call["reduction"]
    run = call.locally(reduction=NONE)
    if reduction == NONE:
        return Placed(Cut(target), run, wants)
    divisor = math.prod(shape) if reduction == MEAN else 1
    return Placed(Partial(), lambda *tensors: quotient(run(*tensors), divisor), wants)


@rule("cross_entropy_loss", "nll_loss_nd", "nll_loss", "nll_loss2d")
def cross_entropy(call: Call) -> Placed:
    """The dim of classes is whole; samples and space may be cut. The mean is over all terms that are not ignored."""
    x, target = call.tensors[:2]
    if x.dim < 2:  # one sample
        raise NothingCut
    by_probability = target.shape == x.shape
    if x.layout is not None or by_probability:
        of_x = call.whole(x if x.layout is not None else target, [1])
    elif target.layout is not None:
        of_x = with_dim(target.layout, 1, x.shape[1])
    else:
        raise NothingCut
    of_terms = without_dims(of_x, [1])
    wants: list[Want] = [of_x, of_x if by_probability else of_terms, Replicated()]
    del wants[len(call.tensors) :]
    reduction, weighted = call["reduction"], call["weight"] is not None
    run = call.locally(reduction=NONE)
    if reduction == NONE:
        return Placed(Cut(of_terms), run, wants)
    if reduction != MEAN:
        return Placed(Partial(), lambda *tensors: run(*tensors).sum(), wants)
    if by_probability:
        samples = math.prod(n for d, n in enumerate(x.shape) if d != 1)
        return Placed(Partial(), lambda *tensors: quotient(run(*tensors), samples), wants)
    ignored, workers = call["ignore_index"], call.workers
    total = AllSum(workers.transport, workers.team, f"the number of terms of {call.name}", workers.team)

    def mean(x: Tensor, target: Tensor, *weight: Tensor) -> Tensor:
        counted = target != ignored
        terms = weight[0][target.where(counted, 0)] * counted if weighted else counted
        return quotient(run(x, target, *weight), total(terms.sum(dtype=dtype_of_sums(x)).detach()))

    return Placed(Partial(), mean, wants)


@rule("multi_margin_loss")
def multi_margin(call: Call) -> Placed:
    if call.tensors[0].dim < 2:
        raise NothingCut
    return by_needs(call)


def quotient(terms: Tensor, divisor: Tensor | int) -> Tensor:
    """The sum of a block's terms over the divisor of a mean."""
    return (terms.sum(dtype=dtype_of_sums(terms)) / divisor).to(terms.dtype)


def dtype_of_sums(x: Tensor) -> torch.dtype:
    """Float32 for half precision, in which a sum of many terms, or even their number, would be infinite."""
    return torch.float32 if x.dtype in HALVES else x.dtype
