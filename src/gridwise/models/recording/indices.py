"""Inputs that are indices of an embedding: one out of range is an error on all workers, raised before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...comm.graph_breaks import capturing
from ...operators.functions import short_name
from ...torch_internals.operators import OpOverload, assert_async
from .recording import Recording

KEEPS_NUMBERS = frozenset(
    "to _to_copy contiguous flatten view reshape transpose permute t unsqueeze squeeze clone alias slice select".split()  # noqa: SIM905
)
"""Operators whose result contains only values of their input, perhaps truncated to integers."""


def limits_of(recording: Recording) -> dict[int, int]:
    """The number of rows of the embedding that an input indexes, by the input's position; the smallest if several."""
    limits: dict[int, int] = {}
    for node in recording.module.graph.nodes:
        if node.target is not torch.ops.aten.embedding.default:
            continue
        rows, source = node.args[0].meta["val"].shape[0], node.args[1]
        while isinstance(source.target, OpOverload) and short_name(source.target) in KEEPS_NUMBERS:
            source = source.args[0]
        known = recording.sources.get(source.name) if source.op == "placeholder" else None
        if known is not None and known.kind == "input":
            limits[int(known.name)] = min(rows, limits.get(int(known.name), rows))
    return limits


def problem_with(inputs: Sequence[Tensor], limits: Mapping[int, int]) -> str | None:
    """A description of an index out of range among the inputs; None if there is none."""
    for place, rows in limits.items():
        x = inputs[place]
        if not x.numel() or x.is_meta or x.is_complex():
            continue
        ends = torch.aminmax(x)
        if capturing() is not None:  # the host cannot read values, now or at a replay: check on the device
            assert_async((ends.min > -1) & (ends.max < rows))
            continue
        for end in ends:
            if not -1 < end.item() < rows:  # fractions are truncated when they become indices
                return f"an embedding has indices from 0 to {rows - 1}, got {int(end)}"
    return None
