"""Padding along any dims: with a constant, or with mirrored, nearest or opposite rows.

    output o of a dim is the input o - before        outside [0, n): the constant, the mirrored, nearest or opposite row

A box that sees nothing outside of the tensor is a part of it. Circular padding needs all of a dim where a box wraps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..grid import Box, Interval, Padding, Shape, hull_then_pad
from .call import OperatorCall
from .on_boxes import Local
from .table import NotOnBoxes, operator

MODES = {"reflection": "reflect", "replication": "replicate"}


@operator(
    "pad", "constant_pad_nd", *(f"{mode}_pad{d}d" for mode in MODES for d in (1, 2, 3)), "_pad_circular",
)  # fmt: skip
def pad(call: OperatorCall) -> Local:
    x = call.tensors[0]
    amounts = list(call["pad"] if "pad" in call.given else call["padding"])
    mode = mode_of(call)
    if mode == "circular" and min(amounts) < 0:
        raise NotOnBoxes("negative circular padding")
    value = (call.given.get("value") or 0) if mode == "constant" else 0
    around = [(0, 0)] * x.dim
    for i, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        around[x.dim - 1 - i] = before, after
    if mode == "circular":
        return circular(x.shape, [before for before, _ in around])
    modes = ["constant" if pair == (0, 0) else mode for pair in around]

    def lines(box: Box) -> list[Padding]:
        ends = zip(box.start, box.stop, x.shape, around, modes, strict=True)
        return [hull_then_pad((a - before, b - before), n, mode) for a, b, n, (before, _), mode in ends]

    def needs(box: Box) -> list[Box]:
        return [Box.of_intervals(line.hull for line in lines(box))]

    return Local(needs, lambda box, x: padded(x, lines(box), mode, value))


def circular(shape: Shape, before: Sequence[int]) -> Local:
    """Row o is row ``o - before``, counted around."""

    def lines(box: Box) -> list[Interval]:
        """The rows, of which the first is within the tensor."""
        firsts = [(a - b) % max(1, n) for a, b, n in zip(box.start, before, shape, strict=True)]
        return [(first, first + n) for first, n in zip(firsts, box.shape, strict=True)]

    def needs(box: Box) -> list[Box]:
        return [Box.of_intervals((a, b) if b <= n else (0, n) for (a, b), n in zip(lines(box), shape, strict=True))]

    def run(box: Box, x: Tensor) -> Tensor:
        for d, ((a, b), n) in enumerate(zip(lines(box), shape, strict=True)):
            if b > n:
                x = x.index_select(d, torch.arange(a, b, device=x.device) % n)
        return x

    return Local(needs, run)


def mode_of(call: OperatorCall) -> str:
    """The kind of padding, as `F.pad` calls it."""
    if call.kind == "pad":
        return str(call["mode"])
    if call.kind == "constant_pad_nd":
        return "constant"
    return MODES.get(call.kind.partition("_")[0], "circular")


def padded(x: Tensor, rows: Sequence[Padding], mode: str, value: float) -> Tensor:
    """The rows that were asked for, from those that they see."""
    wide = [d for d, line in enumerate(rows) if line.before or line.after]
    if wide:
        # torch's modes other than constant pad the last two or three of four dims, the last three of five
        most = x.dim() - 1 if mode == "constant" or x.dim() < 4 else x.dim() - (2 if x.dim() == 4 else 3)
        amounts = [n for line in reversed(rows[min(*wide, most) :]) for n in (line.before, line.after)]
        x = F.pad(x, amounts, mode, value) if mode == "constant" else F.pad(x, amounts, mode)
    for d, line in enumerate(rows):
        if line.crop != (0, x.shape[d]):
            x = x.narrow(d, line.crop[0], line.crop[1] - line.crop[0])
    return x
