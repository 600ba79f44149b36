"""Losses: terms element by element on blocks, then one sum; the loss is one number, the same on all workers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...nn.engine.copy_and_sum import AllSum
from ..placement import Cut, Partial, Replicated, Want, with_dims
from .call import Call, NoRule, Placed
from .pointwise import common_layout, needed_by
from .table import rule

NONE, MEAN = 0, 1
"""Values of torch's `reduction`; 2 is the sum."""


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
    return Placed(Partial(), lambda *tensors: run(*tensors).sum() / divisor, wants)


@rule("cross_entropy_loss", "nll_loss_nd", "nll_loss", "nll_loss2d")
def cross_entropy(call: Call) -> Placed:
    """Classes are whole; samples and space may be cut. The mean is over all terms that are not ignored."""
    x, target = call.tensors[:2]
    _, layout = call.largest_cut()
    if x.dim < 2:
        raise NoRule("the loss of one sample")
    if x.layout is not None:
        of_x = call.whole(x, [1])
    else:
        layout = target.layout or layout
        of_x = with_dims(layout, (layout.cuts[0], (0, x.shape[1]), *layout.cuts[1:]))
    of_terms = with_dims(of_x, (of_x.cuts[0], *of_x.cuts[2:]))
    by_probability = target.shape == x.shape
    wants: list[Want] = [of_x, of_x if by_probability else of_terms]
    weighted = call["weight"] is not None
    if weighted:
        wants.append(Replicated())
    ignored = call["ignore_index"]
    run = _terms(call)
    reduction, samples = call["reduction"], math.prod(n for d, n in enumerate(x.shape) if d != 1)
    if reduction == NONE:
        return Placed(Cut(of_terms), run, wants)
    if reduction != MEAN:
        return Placed(Partial(), lambda *tensors: run(*tensors).sum(), wants)
    if by_probability:
        return Placed(Partial(), lambda *tensors: run(*tensors).sum() / samples, wants)
    total = AllSum(call.workers.transport, call.workers.team, f"the number of terms of {call.name}", call.workers.team)

    def mean(x: Tensor, target: Tensor, *weight: Tensor) -> Tensor:
        counted = target != ignored
        count = (weight[0][target.where(counted, 0)] * counted).sum() if weighted else counted.sum().to(x.dtype)
        return run(x, target, *weight).sum() / total(count.detach())

    return Placed(Partial(), mean, wants)


def _terms(call: Call) -> Any:
    """The loss of each term."""
    ignored = call["ignore_index"]
    smoothing = call.given.get("label_smoothing", 0.0)
    functional = torch.nn.functional
    if call.kind == "cross_entropy_loss":
        if smoothing and call["weight"] is not None and call["reduction"] == MEAN:
            raise NoRule("a mean of smoothed and weighted losses")

        def entropy(x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
            return functional.cross_entropy(
                x, target, weight, ignore_index=ignored, reduction="none", label_smoothing=smoothing
            )

        return entropy

    def likelihood(x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        return functional.nll_loss(x, target, weight, ignore_index=ignored, reduction="none")

    return likelihood
