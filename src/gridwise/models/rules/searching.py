"""Searching sorted numbers, and counting: what is searched is whole, what is looked for may be cut."""

from __future__ import annotations

import torch
from torch import Tensor

from ...nn.engine.copy_and_sum import AllSum
from ..placement import Replicated
from .call import Call, NothingCut, Placed
from .table import rule


@rule("histc", "histogram")
def histogram(call: Call) -> Placed:
    """Counts of the elements of each block, which are summed; without a range, from the smallest to the largest of all."""
    x = call.tensors[0]
    layout = x.layout
    if layout is None or not x.volume:
        raise NothingCut
    workers = call.workers
    total = AllSum(workers.transport, workers.team, call.name, workers.team)
    weighted = call.given.get("weight") is not None
    cut = {0, len(call.tensors) - 1} if weighted else {0}
    wants = [layout if i in cut else Replicated() for i in range(len(call.tensors))]
    place = workers.team.index(workers.rank)

    def ends(x: Tensor) -> tuple[float, float]:
        found = x.new_zeros(workers.size, 3, dtype=torch.float64)
        if x.numel():
            found[place, :2], found[place, 2] = torch.stack(x.aminmax()), 1
        found = total(found)
        found = found[found[:, 2] > 0]
        return found[:, 0].min().item(), found[:, 1].max().item()

    if call.kind == "histc":

        def counted(x: Tensor) -> Tensor:
            low, high = call["min"], call["max"]
            if low == high:
                low, high = ends(x)
            if low == high:
                low, high = low - 1, high + 1
            return total(torch.histc(x, call["bins"], low, high))

        return Placed(Replicated(), counted, wants)
    by_number = isinstance(call["bins"], int)

    def binned(x: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        weight = others[-1] if weighted else None
        if by_number:
            hist, edges = torch.histogram(x, call["bins"], range=call["range"] or ends(x), weight=weight)
        else:
            hist, edges = torch.histogram(x, others[0], weight=weight)
        hist = total(hist)
        return hist / hist.sum() / edges.diff() if call["density"] else hist, edges

    return Placed(Replicated(), binned, wants)
