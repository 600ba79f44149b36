"""Tensors made from sizes and numbers: a box is made alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..grid import Box
from .call import OperatorCall
from .labels import by_labels, none_of, numbered
from .on_boxes import Builder, Composed, Local
from .pointwise import aligned
from .table import NotOnBoxes, operator


@operator("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty")
def filled(call: OperatorCall) -> Local:
    if "fill_value" in call.given and not isinstance(call["fill_value"], bool | int | float | complex):
        raise NotOnBoxes("a value that is a tensor")
    nothing = [none_of(each.shape) for each in call.tensors]
    plain = {"empty": torch.ops.aten.zeros.default, "new_empty": torch.ops.aten.new_zeros.default}.get(call.kind)
    if plain is not None:  # so that what nobody writes to is the same on all boxes
        call = replace(call, op=plain, kwargs={k: v for k, v in call.kwargs.items() if k != "memory_format"})
    return Local(lambda box: nothing, lambda box, *given: call.locally(size=list(box.shape))(*given))


@operator("empty_strided", "new_empty_strided", "empty_permuted")
def strided(call: OperatorCall) -> Local:
    """In no particular order of memory."""
    dtype, device = call.result.dtype, call.result.device
    nothing = [none_of(each.shape) for each in call.tensors]
    return Local(lambda box: nothing, lambda box, *_: torch.zeros(box.shape, dtype=dtype, device=device))


@operator("zeros_like", "ones_like", "full_like", "empty_like")
def like(call: OperatorCall) -> Local:
    """A tensor of the shape, dtype and device of another."""
    dtype, shape = call.result.dtype, call.tensors[0].shape
    value = {"zeros_like": 0, "ones_like": 1}.get(call.kind, call.given.get("fill_value", 0))
    on = call.given.get("device")
    nothing = [none_of(shape)]

    def run(box: Box, given: Tensor) -> Tensor:
        return torch.full(box.shape, value, dtype=dtype, device=given.device if on is None else on)

    return Local(lambda box: nothing, run)


@operator("copy", "fill", "zero")
def overwritten(call: OperatorCall) -> Local:
    """What becomes of a tensor that is written to: its own elements do not matter."""
    target, given = call.tensors[0], call.tensors[1:]
    dtype, number = target.dtype, call.given.get("value", 0)
    labels = numbered("d", target.dim)
    operands = [["nothing"] * target.dim, *(aligned(labels, each.dim) for each in given)]
    needs = by_labels(call, operands, labels).needs
    nothing = none_of(target.shape)

    def run(box: Box, old: Tensor, *values: Tensor) -> Tensor:
        if not values:
            return torch.full(box.shape, number, dtype=dtype, device=old.device)
        return values[0].to(old.device, dtype).expand(box.shape)

    return Local(lambda box: [nothing, *list(needs(box))[1:]], run)


@operator(
    "arange", "linspace", "logspace", "tril_indices", "triu_indices", "scalar_tensor", "hann_window", "hamming_window",
    "blackman_window", "bartlett_window", "kaiser_window", "fft_fftfreq", "fft_rfftfreq",
)  # fmt: skip
def line(call: OperatorCall) -> Local:
    """Numbers in a line, made as a whole, since their rounding may depend on where the line begins; then cut.

    Integers are exact, and only those of the box are made.
    """
    if call.tensors:
        raise NotOnBoxes("a line between tensors")
    result = call.result
    if call.kind == "arange" and not result.dtype.is_floating_point and isinstance(call.given.get("step", 1), int):
        start, step = call.given.get("start", 0), call.given.get("step", 1)
        if isinstance(start, int):

            def counted(box: Box) -> Tensor:
                (first,), (last,) = box.start, box.stop
                made = torch.arange(first, last, dtype=torch.int64, device=result.device)
                return made.mul_(step).add_(start).to(result.dtype)

            return Local(lambda box: [], counted)
    run = call.locally()
    return Local(lambda box: [], lambda box: run()[box.slices])


@operator("eye")
def eye(call: OperatorCall) -> Local:
    dtype, device = call.result.dtype, call.result.device

    def run(box: Box) -> Tensor:
        rows, columns = (torch.arange(a, b, device=device) for a, b in zip(box.start, box.stop, strict=True))
        return (rows[:, None] == columns).to(dtype)

    return Local(lambda box: [], run)


@operator("meshgrid")
def meshgrid(call: OperatorCall) -> Composed:
    """Each line, along a dim of its own."""
    order = list(range(len(call.tensors)))
    if call.given.get("indexing") == "xy" and len(order) > 1:
        order[:2] = order[1::-1]
    shape = call.result.shape
    aten = torch.ops.aten

    def build(builder: Builder, *lines: object) -> list[object]:
        made = []
        for d, each in zip(order, lines, strict=True):
            alone = builder.call(aten.reshape.default, each, [shape[d] if i == d else 1 for i in range(len(shape))])
            made.append(builder.call(aten.expand.default, alone, list(shape)))
        return made

    return Composed(build)


@operator("lift_fresh", "lift_fresh_copy", "lift")
def lifted(call: OperatorCall) -> Local:
    return Local(lambda box: [box], lambda box, x: x)
