"""Padding along any dims: with a constant, or with mirrored, nearest or opposite rows.

    output o of a dim is the input o - before        outside [0, n): the constant, the mirrored, nearest or opposite row

A box that sees nothing outside of the tensor is a part of it. Circular padding needs all of a dim where a box wraps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...grid import Box, Interval, Padding, Shape, hull_then_pad
from ..call import OperatorCall
from ..on_boxes import Local
from ..table import NotOnBoxes, operator

MODES = {"reflection": "reflect", "replication": "replicate"}


@operator(
    "pad", "constant_pad_nd", *(f"{mode}_pad{d}d" for mode in MODES for d in (1, 2, 3)), "_pad_circular",
)  # fmt: skip
def pad(call: OperatorCall) -> Local:
    made = rows_of(call)
    return Local(made.needs, made.run)


def rows_of(call: OperatorCall) -> PaddedRows | CircularRows:
    """Which rows the outputs are made of."""
    x, mode = call.tensors[0], mode_of(call)
    amounts = list(call["pad"] if "pad" in call.given else call["padding"])
    around = [(0, 0)] * x.dim
    for i, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        around[x.dim - 1 - i] = before, after
    if mode != "circular":
        value = (call.given.get("value") or 0) if mode == "constant" else 0
        return PaddedRows(x.shape, tuple(around), mode, value)
    if min(amounts) < 0:
        raise NotOnBoxes("negative circular padding")
    return CircularRows(x.shape, tuple(before for before, _ in around))


@dataclass(frozen=True)
class PaddedRows:
    """Rows beyond the ends are a constant, or mirror or repeat those inside."""

    shape: Shape
    around: tuple[Interval, ...]
    """How many rows are added before and after, for each dim; negative numbers crop."""
    mode: str
    value: float

    def rows(self, box: Box) -> list[Padding]:
        """For each dim, how the rows of a box are made."""
        ends = zip(box.start, box.stop, self.shape, self.around, strict=True)
        return [
            hull_then_pad((a - before, b - before), n, self.mode if before or after else "constant")
            for a, b, n, (before, after) in ends
        ]

    def needs(self, box: Box) -> list[Box]:
        return [Box.of_intervals(line.hull for line in self.rows(box))]

    def run(self, box: Box, x: Tensor) -> Tensor:
        rows, mode = self.rows(box), self.mode
        wide = [d for d, line in enumerate(rows) if line.before or line.after]
        if wide:
            # torch's modes other than constant pad the last two or three of four dims, the last three of five
            most = x.dim() - 1 if mode == "constant" or x.dim() < 4 else x.dim() - (2 if x.dim() == 4 else 3)
            amounts = [n for line in reversed(rows[min(*wide, most) :]) for n in (line.before, line.after)]
            x = F.pad(x, amounts, mode, self.value) if mode == "constant" else F.pad(x, amounts, mode)
        for d, line in enumerate(rows):
            if line.crop != (0, x.shape[d]):
                x = x.narrow(d, line.crop[0], line.crop[1] - line.crop[0])
        return x


@dataclass(frozen=True)
class CircularRows:
    """Row o is row ``o - before``, counted around: rows beyond one end are those of the other."""

    shape: Shape
    before: Shape

    def rows(self, box: Box) -> list[Interval]:
        """For each dim the rows, of which the first is within the tensor."""
        firsts = [(a - b) % max(1, n) for a, b, n in zip(box.start, self.before, self.shape, strict=True)]
        return [(first, first + n) for first, n in zip(firsts, box.shape, strict=True)]

    def needs(self, box: Box) -> list[Box]:
        rows = zip(self.rows(box), self.shape, strict=True)
        return [Box.of_intervals((a, b) if b <= n else (0, n) for (a, b), n in rows)]

    def run(self, box: Box, x: Tensor) -> Tensor:
        for d, ((a, b), n) in enumerate(zip(self.rows(box), self.shape, strict=True)):
            if b > n:
                x = x.index_select(d, torch.arange(a, b, device=x.device) % n)
        return x


def mode_of(call: OperatorCall) -> str:
    """The kind of padding, as `F.pad` calls it."""
    if call.kind == "pad":
        return str(call["mode"])
    if call.kind == "constant_pad_nd":
        return "constant"
    return MODES.get(call.kind.partition("_")[0], "circular")
