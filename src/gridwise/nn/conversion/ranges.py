"""Indices of an embedding that it has not: one error on all workers, where the one that has them would raise alone.

Of indices that are an argument of the model, the agreement at the start of a call tells, and no message is added. Of
others, a vote at the embedding does: one all-reduce of five integers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...partition import Partition
from ..engine.agreement import agree_call, agreement, key_of
from .state import OnGrid
from .walk import Node, Walk, name_of

KEEPS_NUMBERS = frozenset(
    "long int to contiguous flatten view reshape transpose permute t unsqueeze squeeze clone".split()  # noqa: SIM905
)
"""Methods and functions after which all numbers of a tensor are there, and no others; but for fractions."""


class InRange(torch.nn.Module):
    """The identity, of indices; raises on all workers of `P` if one has an index that is none of `rows`."""

    def __init__(self, P: Partition, rows: int) -> None:
        super().__init__()
        self.P, self.rows = P, rows
        self.says = f"an embedding of {rows} rows on {P.shape}"

    def forward(self, x: Tensor) -> Tensor:
        with agreement(True):
            agree_call(self.P.transport, self.P.team, self.says, key_of(self.says), False, problem_with(x, self.rows))
        return x


def problem_with(x: Tensor, rows: int) -> str | None:
    """What is wrong with indices of one of `rows`."""
    if not x.numel() or x.is_meta or x.is_complex():
        return None
    for end in torch.aminmax(x):
        if not -1 < end.item() < rows:  # fractions are cut off where they become indices
            return f"has indices from 0 to {rows - 1}, got {int(end)}"
    return None


def watch(walk: Walk, node: Node, x: Node, rows: int) -> None:
    """See to it that the indices `x` of an embedding are looked at by all workers."""
    source = x
    while source.op != "placeholder" and source.all_input_nodes:
        if source in walk.original and (source.op == "call_module" or name_of(source.target) not in KEEPS_NUMBERS):
            break
        source = source.all_input_nodes[0]
    if source.op == "placeholder":
        limits = walk.inputs.limits
        limits[source.target] = min(rows, limits.get(source.target, rows))
        return
    state = walk.states[x]
    assert isinstance(state, OnGrid)
    P = state.P
    checked = walk.insert(node, "in_range", P, lambda: InRange(P, rows), (x,), state)
    walk.replace(node, {x: checked})
