"""Losses: a term for each element; their sum or mean is collected over boxes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..grid import Box
from .call import OperatorCall, TensorSpec
from .formats import wide
from .labels import by_labels, needs_by_labels, numbered
from .on_boxes import Local, Summed
from .pointwise import aligned
from .products import Operands
from .sums import kept_in
from .table import NotOnBoxes, operator

NONE, MEAN = 0, 1
"""Values of torch's `reduction`; 2 is the sum."""

Divisor = Callable[..., Tensor | int]
"""For the tensors of a box, what its terms add to the divisor of the mean."""


def loss(
    call: OperatorCall, operands: Operands, result: list[str], shape: tuple[int, ...], counted: Divisor
) -> Local | Summed:
    """A loss of tensors with these labels; `result` and `shape` are those of its terms."""
    fixed = _without_gradient(call)
    run, reduction, dtype = call.locally(reduction=NONE), call["reduction"], call.result.dtype
    needs = needs_by_labels([each.shape for each in call.tensors], operands, shape, result)
    if reduction == NONE:
        return Local(needs, lambda box, *tensors: run(*tensors), 4.0)
    if not prod(shape):
        raise NotOnBoxes("a loss without terms")

    def partial(box: Box, *tensors: Tensor) -> tuple[Tensor, ...]:
        tensors = tuple(x.detach() if i in fixed else x for i, x in enumerate(tensors))
        terms = run(*tensors)
        total = wide(terms).sum().to(kept_in(terms.dtype))
        return total, torch.as_tensor(counted(*tensors), device=total.device).to(torch.float64).detach()

    def finish(total: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        return ((total / count if reduction == MEAN else total).to(dtype),)

    return Summed(shape, needs, partial, finish, 4.0)


def _without_gradient(call: OperatorCall) -> set[int]:
    """The tensors for which torch has no gradient: it refuses those that ask for one."""
    named = {"weight", "pos_weight"} | ({"target"} if call.kind == "soft_margin_loss" else set())
    if call.kind == "cross_entropy_loss" and call["target"].shape == call.tensors[0].shape:
        named = set()
    given = [name for name, each in call.given.items() if isinstance(each, TensorSpec)]
    return {i for i, name in enumerate(given) if name in named}


@operator(
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "kl_div", "soft_margin_loss", "poisson_nll_loss",
)  # fmt: skip
def elementwise(call: OperatorCall) -> Local | Summed:
    shape = tuple(torch.broadcast_shapes(*(value.shape for value in call.tensors)))
    labels = numbered("d", len(shape))
    operands = [aligned(labels, value.dim) for value in call.tensors]

    def counted(*tensors: Tensor) -> int:
        return prod(torch.broadcast_shapes(*(x.shape for x in tensors)))

    return loss(call, operands, labels, shape, counted)


@operator("cross_entropy_loss", "nll_loss_nd", "nll_loss", "nll_loss2d", "multi_margin_loss")
def cross_entropy(call: OperatorCall) -> Local | Summed:
    """The dim of classes is whole. The mean is over all terms that are not ignored, by the weights of their classes."""
    x, target = call.tensors[:2]
    if x.dim < 2:
        raise NotOnBoxes("the loss of one sample")
    by_probability = target.shape == x.shape
    labels = ["n", *numbered("s", x.dim - 2)]
    classes = ["n", "c", *labels[1:]]
    shape = tuple(n for d, n in enumerate(x.shape) if d != 1)
    operands = [classes, classes if by_probability else labels, ["c"]][: len(call.tensors)]
    ignored = call.given.get("ignore_index")

    def counted(x: Tensor, target: Tensor, *weight: Tensor) -> Tensor | int:
        if by_probability or ignored is None:
            return x.numel() // x.shape[1]
        is_counted = target != ignored
        return (weight[0][target.where(is_counted, 0)] * is_counted if weight else is_counted).sum(dtype=torch.float64)

    return loss(call, operands, labels, shape, counted)


@torch.library.custom_op("gridwise::ctc_terms", mutates_args=())
def ctc_terms(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> Tensor:
    """The CTC loss of each sample. Torch's own operator makes tensors whose shape depends on the lengths of targets."""
    return torch.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, NONE, zero_infinity)


@ctc_terms.register_fake
def _(log_probs: Tensor, *rest: object) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.settings = inputs[4:]


def _of_log_probs(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    log_probs, targets, input_lengths, target_lengths = ctx.saved_tensors
    blank, zero_infinity = ctx.settings
    with torch.enable_grad():
        x = log_probs.detach().requires_grad_()
        y = torch.ctc_loss(x, targets, input_lengths, target_lengths, blank, NONE, zero_infinity)
        (found,) = torch.autograd.grad(y, x, gradient)
    return found, None, None, None, None, None


ctc_terms.register_autograd(_of_log_probs, setup_context=_keep)


@operator("gridwise::ctc_terms")
def ctc(call: OperatorCall) -> Local:
    steps, _, classes = call.tensors[0].shape
    return by_labels(call, [["t", "n", "c"], ["n", "s"], ["n"], ["n"]], ["n"], flops=8.0 * steps * classes)
