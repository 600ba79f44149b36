"""`torch.autograd.Function` on blocks: its forward and its backward are each placed by the rules.

    forward     the steps of the recorded forward, without autograd
    backward    the steps of the recorded backward, from the saved tensors and the cotangents of the outputs

Cotangents are placed as in `placement`: that of a replicated output arrives as a partial sum, and that of a replicated
input must be one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..nn.engine.agreement import agreement
from ..nn.engine.operator import prepare
from ..operators.random.random_stream import RandomStream
from .movement import CountedOnce, FirstAlone, applied
from .placement import Cut, GlobalTensor, Partial, Placement, Replicated
from .program import Step, execute, free_early
from .recording.recording import Backward
from .rules import NoRule
from .tape import Item, Tape

if TYPE_CHECKING:
    from .placing import Placing


@dataclass
class PlacedFunction:
    """An autograd Function on this worker: its steps, and the roles of their slots."""

    forward: list[Step]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    saved: tuple[int, ...]
    """The slots of the forward steps that backward needs."""
    backward: list[Step]
    backward_inputs: tuple[int, ...]
    """The slots of the backward steps that receive `saved`, followed by those of the cotangents."""
    gradient_slots: dict[int, int]
    """The slot of the gradient of each input, by the slot of that input."""
    cotangents: tuple[int, ...]
    """The positions in `outputs` of those whose cotangents backward uses."""

    def __call__(self, stream: RandomStream, *tensors: Tensor) -> tuple[Tensor, ...]:
        made = _Differentiated.apply(self, stream, *tensors)
        return made if isinstance(made, tuple) else (made,)


class _Differentiated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, placed: PlacedFunction, stream: RandomStream, *tensors: Tensor) -> tuple[Tensor, ...]:
        values: dict[int, Any] = dict(zip(placed.inputs, tensors, strict=True))
        execute(placed.forward, values, stream)
        ctx.placed, ctx.stream = placed, stream
        prepare(ctx, *(values[slot] for slot in placed.saved))
        given = {id(x) for x in tensors}
        made = tuple(values[slot] for slot in placed.outputs)
        made = tuple(y.clone() if id(y) in given else y for y in made)
        ctx.mark_non_differentiable(*(y for y in made if not (y.is_floating_point() or y.is_complex())))
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        placed: PlacedFunction = ctx.placed
        *saved, _ = ctx.saved_tensors
        given = [*saved, *(gradients[place] for place in placed.cotangents)]
        values: dict[int, Any] = dict(zip(placed.backward_inputs, given, strict=True))
        with agreement(False):
            execute(placed.backward, values, ctx.stream)
        return (
            None,
            None,
            *(values[placed.gradient_slots[slot]] if slot in placed.gradient_slots else None for slot in placed.inputs),
        )


def differentiated(
    placing: Placing, backward: Backward, inner: list[Step], inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> tuple[PlacedFunction, tuple[int, ...]]:
    """A Function with the forward steps `inner`, and the slots of its inputs, with those that only backward reads."""
    from .placing import Placing

    nodes = {node.name: node for node in placing.graph.nodes}
    saved = [placing.item(nodes[name]) for name in backward.saved]
    made = [placing.item(nodes[name]) for name in backward.outputs]
    wanted = [placing.item(nodes[name]) for name in backward.inputs]
    inside = {slot for step in inner for slot in step.made}
    inputs = tuple(sorted({*inputs, *(item.slot for item in saved if item.slot not in inside)}))
    name = f"the backward of {backward.function.__name__}"
    walk = Placing(backward.module.graph, Tape(placing.workers, placing.tape.report), name, {}, {})
    placeholders = walk.placeholders()
    if len(placeholders) != len(saved) + len(made):
        raise NoRule("its backward takes other tensors than were recorded")
    for node, item in zip(placeholders, saved, strict=False):
        walk.bind(node, item.value)
    for node, item in zip(placeholders[len(saved) :], made, strict=True):
        walk.bind(node, replace(item.value, placement=cotangent_of(item.value.placement), order=()))
    walk.walk()
    if walk.problems:
        raise NoRule("; ".join(walk.problems))
    gradient_slots = {}
    for item, gradient in zip(wanted, walk.results(), strict=True):
        if item.slot in inputs:
            gradient_slots[item.slot] = as_cotangent(walk.tape, gradient, item.value, name).slot
    used = {slot for step in inner for slot in step.inputs}
    free_early(inner, {*outputs, *(item.slot for item in saved)} | (set(inputs) - used))
    free_early(walk.tape.steps, set(gradient_slots.values()))
    backward_inputs = tuple(walk.item(node).slot for node in placeholders)
    placed = PlacedFunction(
        inner, inputs, outputs, tuple(item.slot for item in saved), walk.tape.steps, backward_inputs, gradient_slots,
        tuple(outputs.index(item.slot) for item in made),
    )  # fmt: skip
    return placed, inputs


def cotangent_of(placement: Placement) -> Placement:
    """The placement of the cotangent of a tensor with this placement."""
    if isinstance(placement, Cut):
        return placement
    return Partial() if isinstance(placement, Replicated) else Replicated()


def as_cotangent(tape: Tape, gradient: Item, of: GlobalTensor, name: str) -> Item:
    """A gradient in the placement of the cotangent of `of`."""
    workers = tape.workers
    want = cotangent_of(of.placement)
    if not isinstance(want, Partial) or workers.size == 1:
        return tape.moved_to(gradient, want.layout if isinstance(want, Cut) else Replicated(), name)
    placement = gradient.value.placement
    if isinstance(placement, Partial):
        return gradient
    if isinstance(placement, Replicated):
        share = applied(FirstAlone(CountedOnce(workers.transport, workers.team, name)))
    else:
        box, shape = placement.layout.block(workers.rank), gradient.value.shape
        ends = zip(reversed(box.start), reversed(box.stop), reversed(shape), strict=True)
        around = [n for start, stop, extent in ends for n in (start, extent - stop)]
        share = partial(torch.nn.functional.pad, pad=around)
    return tape.add(share, [gradient], replace(gradient.value, placement=want, order=()))[0]
