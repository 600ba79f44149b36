"""Pointwise operators, which make each element from the elements at the same index, of tensors that broadcast."""

from __future__ import annotations

import torch
from torch import Tensor

from ..grid import Box
from .call import OperatorCall
from .labels import Labels, by_labels, kept, none_of, numbered
from .on_boxes import Local
from .table import NotOnBoxes, operator, operator_by_tag

UNTAGGED = (
    "hardswish", "leaky_relu", "_prelu_kernel", "where", "masked_fill", "lerp", "addcmul", "addcdiv", "clone", "relu6", "selu",
    "mish", "celu", "softshrink", "hardshrink", "tanhshrink", "softplus", "threshold", "log_sigmoid", "softsign", "square",
    "clamp", "clip", "nan_to_num", "float_power", "true_divide", "divide", "multiply", "subtract", "rsub", "positive",
    "negative", "absolute", "isclose", "conj", "_conj", "conj_physical", "resolve_conj", "resolve_neg", "_neg_view", "real",
    "imag", "complex", "polar", "logical_and", "logical_or", "logical_xor", "logical_not", "detach", "detach_copy", "alias",
    "contiguous", "special_expit", "special_erf", "maximum", "minimum", "fmax", "fmin", "max.other", "min.other", "isnan",
    "isinf", "isfinite", "angle", "heaviside", "hypot", "fmod", "remainder", "floor_divide", "__and__", "__or__", "arctan2",
    "not_equal", "less", "less_equal", "greater", "greater_equal", "fix", "_autocast_to_reduced_precision",
    "_autocast_to_full_precision",
)  # fmt: skip
"""Pointwise operators that torch does not tag as such, apart from those that write in place or only make a tensor."""


def aligned(labels: Labels, dim: int) -> Labels:
    """The labels of a tensor that broadcasts: those of the last dims."""
    return labels[len(labels) - dim :]


@operator_by_tag(torch.Tag.pointwise)
@operator(*UNTAGGED)
def pointwise(call: OperatorCall) -> Local:
    """Any pointwise operator, with broadcasting."""
    if torch.Tag.nondeterministic_seeded in call.op.tags:
        raise NotOnBoxes("it draws random numbers in an order of its own")
    result = call.result.shape
    shapes = [each.shape for each in call.tensors]
    if not shapes or tuple(torch.broadcast_shapes(*shapes)) != tuple(result):
        raise NotOnBoxes("its result does not have the shape of its tensors")
    labels = numbered("d", len(result))
    return by_labels(call, [aligned(labels, len(shape)) for shape in shapes], labels)


@operator("to", "_to_copy", "type_as")
def converted(call: OperatorCall) -> Local:
    """A conversion to another dtype or device, perhaps that of a second tensor."""
    others = [none_of(each.shape) for each in call.tensors[1:]]
    run = call.locally()
    return Local(lambda box: [box, *others], lambda box, *tensors: run(*tensors))


@operator("prelu")
def prelu(call: OperatorCall) -> Local:
    """PReLU, with one slope for all channels or one for each; channels are dim 1."""
    x, slope = call.tensors
    labels = numbered("d", x.dim)
    of_slope = labels[1:2] if x.dim > 1 else ["one"]
    return by_labels(call, [labels, of_slope[: slope.dim]], labels)


@operator("glu")
def glu(call: OperatorCall) -> Local:
    """One half of the channels, times the sigmoid of the other: a box needs its rows of both halves."""
    x, run = call.tensors[0], call.locally()
    (dim,) = call.dims("dim", x.dim)
    half = x.shape[dim] // 2

    def needs(box: Box) -> list[Box]:
        stop = list(box.stop)
        stop[dim] += half
        return [Box(box.start, tuple(stop))]

    def on_box(box: Box, x: Tensor) -> Tensor:
        length = box.stop[dim] - box.start[dim]
        if length == half:
            return kept(run(x), box, [dim])
        return x.narrow(dim, 0, length) * x.narrow(dim, half, length).sigmoid()

    return Local(needs, on_box)
