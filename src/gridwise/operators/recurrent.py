"""Recurrent layers: sequences, states and weights are whole, the batch follows the box.

Outputs and final states have different shapes. They are made together, one row of numbers for each sample, and then
taken from these rows.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..grid import Box
from .call import OperatorCall, TensorSpec
from .labels import by_labels
from .on_boxes import Builder, Composed, Local
from .table import NotOnBoxes, operator


@operator("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(call: OperatorCall) -> Composed:
    if "data" in call.given:
        raise NotOnBoxes("packed sequences")
    if call["dropout"] and call["train"]:
        raise NotOnBoxes("dropout between recurrent layers")
    x = call["input"]
    if x.dim != 3:
        raise NotOnBoxes("a sequence without a batch")
    sequence = ["n", "t", "i"] if call["batch_first"] else ["t", "n", "i"]
    states = len(call["hx"]) if isinstance(call["hx"], list | tuple) else 1
    operands = [sequence, *[["l", "n", "h"]] * states]
    batches = [0 if call["batch_first"] else 1, *[1] * (len(call.results) - 1)]
    samples = x.shape[batches[0]]
    sizes = [each.volume // max(1, samples) for each in call.results]
    rows = TensorSpec((samples, sum(sizes)), call.result.dtype, call.result.device)
    layer = call.locally()

    def together(*tensors: Tensor) -> Tensor:
        return torch.cat([y.movedim(d, 0).flatten(1) for y, d in zip(layer(*tensors), batches, strict=True)], 1)

    weights = x.shape[-1] * call.results[1].shape[-1]
    alone = OperatorCall(call.op, call.args, call.kwargs, (rows,))
    made = by_labels(alone, operands, ["n", "row"], together, ["row"], 8.0 * weights * x.shape[1 - batches[0]])

    def build(builder: Builder, *values: Any) -> list[Any]:
        packed = builder.local(made, values, rows.shape, rows.dtype)
        return [
            builder.local(_taken(end - size, end, result, d), [packed], result.shape, result.dtype, f"result {i}")
            for i, (end, size, result, d) in enumerate(
                zip(accumulate(sizes), sizes, call.results, batches, strict=True)
            )
        ]

    return Composed(build)


def _taken(first: int, last: int, result: TensorSpec, batch: int) -> Local:
    """A result from columns of the rows of numbers; its batch is at dim `batch`."""
    rest = [n for d, n in enumerate(result.shape) if d != batch]

    def run(box: Box, rows: Tensor) -> Tensor:
        y = rows.unflatten(1, rest).movedim(0, batch)
        return y[tuple(slice(None) if d == batch else each for d, each in enumerate(box.slices))]

    return Local(lambda box: [Box((box.start[batch], first), (box.stop[batch], last))], run)
