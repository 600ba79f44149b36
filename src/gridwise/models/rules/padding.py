"""Padding of the global tensor, along any dims: with a constant, or with mirrored, nearest or opposite rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor

from ...grid import Layout, Needs, Padding, balanced_cuts, hull_then_pad
from ..placement import Cut
from .call import Call, NoRule, Placed, of_nothing
from .table import rule

MODES = {"reflection": "reflect", "replication": "replicate"}


@rule(
    "pad", "constant_pad_nd", *(f"{mode}_pad{d}d" for mode in MODES for d in (1, 2, 3)), "_pad_circular",
)  # fmt: skip
def pad(call: Call) -> Placed:
    x, layout = call.first_cut()
    amounts = list(call["pad"] if "pad" in call.given else call["padding"])
    mode = _mode(call)
    value = (call.given.get("value") or 0) if mode == "constant" else 0
    around = [(0, 0)] * x.dim
    for i, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        around[x.dim - 1 - i] = before, after
    if mode == "circular" and min(amounts) < 0:
        raise NoRule("negative circular padding")
    grid, shape = layout.grid, call.result.shape
    cuts = [
        have if around[d] == (0, 0) else balanced_cuts(n, grid.shape[d])
        for d, (have, n) in enumerate(zip(layout.cuts, shape, strict=True))
    ]
    target = Layout(grid, tuple(cuts))
    lines = [
        [
            _rows((a - before, b - before), n, mode if (before, after) != (0, 0) else "constant")
            for a, b in pairwise(each)
        ]
        for each, n, (before, after) in zip(cuts, x.shape, around, strict=True)
    ]
    wraps = mode == "circular"
    hulls = tuple(tuple(rows.hull for rows in line) for line in lines)
    needs = Needs(grid, hulls, tuple(wraps and pair != (0, 0) for pair in around))
    mine = [line[i] for line, i in zip(lines, grid.index_of(call.workers.rank), strict=True)]
    block = call.block(target).shape
    return Placed(Cut(target), lambda x: _padded(x, mine, mode, value, block), [needs])


def _mode(call: Call) -> str:
    if call.kind == "pad":
        return str(call["mode"])
    if call.kind == "constant_pad_nd":
        return "constant"
    return MODES.get(call.kind.partition("_")[0], "circular")


def _rows(need: tuple[int, int], extent: int, mode: str) -> Padding:
    if mode == "circular":
        return Padding(need, 0, 0, (0, need[1] - need[0]))
    return hull_then_pad(need, extent, mode)


def _padded(x: Tensor, rows: Sequence[Padding], mode: str, value: float, block: tuple[int, ...]) -> Tensor:
    """The fetched rows, padded and cropped; an empty block is made without computing."""
    if 0 in block:
        return of_nothing([x], block, x.dtype)
    padded = [d for d, line in enumerate(rows) if line.before or line.after]
    if padded and mode != "circular":
        # torch's modes other than constant pad the last two or three of four dims, the last three of five
        most = x.dim() - 1 if mode == "constant" or x.dim() < 4 else x.dim() - (2 if x.dim() == 4 else 3)
        first = min(*padded, most)
        amounts = [n for line in reversed(rows[first:]) for n in (line.before, line.after)]
        x = F.pad(x, amounts, mode, value) if mode == "constant" else F.pad(x, amounts, mode)
    for d, line in enumerate(rows):
        if line.crop != (0, x.shape[d]):
            x = x.narrow(d, line.crop[0], line.crop[1] - line.crop[0])
    return x
