"""Convolutions, plain and transposed: the part of each worker is that of a layer (`nn.windows.conv_part`).

Weights are whole on every worker; each uses those of its output channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...grid import Box, Grid, Layout
from ...nn.engine.agreement import key_of
from ...nn.engine.operator import CallId
from ...nn.windows.conv_part import ConvPart, plain_part, transposed_part
from ...operators.windows.convolution import ConvolutionOnBoxes
from ...operators.windows.transposed_convolution import TransposedOnBoxes
from ..placement import Cut, GlobalTensor
from .call import Call, LocalFunction, NoRule, Placed
from .on_boxes import source_layout
from .table import rule


@rule(*(f"conv{d}d" for d in (1, 2, 3)), "convolution", "_convolution")
def convolution(call: Call) -> Placed:
    """A convolution with numeric or named padding; also `aten::convolution`, torch's one operator for all kinds."""
    return _convolved(call, ConvolutionOnBoxes)


@rule(*(f"conv_transpose{d}d" for d in (1, 2, 3)))
def transposed_convolution(call: Call) -> Placed:
    return _convolved(call, TransposedOnBoxes)


def _convolved(call: Call, kind: type[ConvolutionOnBoxes] | type[TransposedOnBoxes]) -> Placed:
    x, weight, space = call.tensors[0], call["weight"].shape, call["weight"].dim - 2
    if x.dim not in (space + 1, space + 2):
        raise NoRule(f"an input of {x.dim} dims")
    source, shape = source_layout(call, x), call.result.shape
    if space < 3 and _is_cut_by_samples(source, x, space):
        target = Layout(source.grid, (source.cuts[0], *((0, n) for n in shape[1:])))
        return Placed(Cut(target), call.locally(), call.others_whole(source))
    target, unbatched = Layout.balanced(source.grid, shape), x.dim == space + 1
    window = call["stride"], call["padding"], call["dilation"], call["groups"]
    where = call.workers.transport, call.workers.team, call.name
    before, after = (_batched(each) if unbatched else each for each in (source, target))
    is_transposed = call.given.get("transposed") or kind is TransposedOnBoxes
    made = (TransposedOnBoxes if is_transposed else kind).of(
        before.global_shape, weight, call["bias"] is not None, *window
    )
    if isinstance(made, TransposedOnBoxes):
        part = transposed_part(made, *where, before, after, x.dtype)
    else:
        part = plain_part(made, *where, before, after, x.dtype)
    assert part.block is not None
    run = _run_of(part, made.needs(part.block)[1:] if part.block.volume else [], call.name)
    if unbatched:
        run = _of_one_sample(run)
    halo = 0 if part.fetch is None else part.fetch.incoming * x.dtype.itemsize
    return Placed(Cut(target), run, call.others_whole(source), moved=halo)


def _of_one_sample(run: LocalFunction) -> LocalFunction:
    return lambda x, *rest: run(x.unsqueeze(0), *rest).squeeze(0)


def _batched(layout: Layout) -> Layout:
    """The same with a batch of one sample."""
    return Layout(Grid(layout.grid.ranks, (1, *layout.grid.shape)), ((0, 1), *layout.cuts))


def _is_cut_by_samples(layout: Layout, x: GlobalTensor, space: int) -> bool:
    """Whether only the batch is cut, evenly and with samples on every worker: a convolution is then torch's own.

    Not used for volumes, for which `conv_part` is faster, since it pads depth by hand.
    """
    if x.dim != space + 2 or max(layout.grid.shape[1:]) > 1 or x.shape[0] < layout.grid.size:
        return False
    return layout == Layout.balanced(layout.grid, x.shape)


def _run_of(part: ConvPart, boxes: list[Box], name: str) -> LocalFunction:
    """The call of `part` with its boxes of the weight and of the bias; without any, with nothing of them."""
    call_id = CallId(key_of(name), 0)

    def own(tensors: tuple[Tensor, ...]) -> list[Tensor]:
        if not boxes:
            return [each.narrow(0, 0, 0) for each in tensors]
        pairs = zip(tensors, boxes, strict=True)
        return [each if box.shape == each.shape else each[box.slices] for each, box in pairs]

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        weight, *bias = own(tensors)
        given = x, weight, bias[0] if bias else None
        records = x.requires_grad and torch.is_grad_enabled()
        if part.node is not None:
            return part.node(*given, (None, None), call_id, records)
        return part.in_steps(*given, call_id, records)

    return run
