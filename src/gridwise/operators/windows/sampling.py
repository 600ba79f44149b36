"""Elements taken from, or put at, places that only values know: all of space is needed, for any box of the others."""

from __future__ import annotations

from ..call import OperatorCall
from ..labels import by_labels, numbered
from ..on_boxes import Local
from ..table import operator


@operator("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(call: OperatorCall) -> Local:
    """The points are cut, the image is whole."""
    space, points = numbered("i", call["input"].dim - 2), numbered("p", call["input"].dim - 2)
    operands = ["n", "c", *space], ["n", *points, "coordinates"]
    return by_labels(call, operands, ["n", "c", *points], flops=4.0 ** len(points))


@operator("max_unpool2d", "max_unpool3d")
def max_unpool(call: OperatorCall) -> Local:
    """Each value goes where its index says, in its plane."""
    dims = int(call.kind[-2])
    lead, space = numbered("n", call["self"].dim - dims), numbered("i", dims)
    return by_labels(call, [[*lead, *space]] * 2, [*lead, *space], whole=space)
