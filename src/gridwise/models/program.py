"""The program of a recording: a flat list of steps on this worker's tensors, which frees what is no longer needed.

    step         a function of some tensors, what it makes, and which tensors are not needed afterwards
    switch       autograd or autocast on or off, for the steps that follow
    checkpoint   steps that are computed again in backward; their messages are then sent again, on all workers alike

Nothing is agreed inside: the caller has agreed on the call. Gradients of parameters are summed in a few messages that are under
way while backward goes on (`nn.parameters.gradient_buckets`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from ..nn.engine.agreement import agreement, key_of
from ..nn.engine.operator import Ticket
from ..nn.parameters.blocks import Shared
from ..nn.parameters.gradient_buckets import FULL, GradientSum, begin, end
from .placement import Placement, Workers
from .random import RandomStream, Replay
from .recording.recording import ValueSource
from .report import Report

if TYPE_CHECKING:
    from .compiled import CompiledPieces

Values = list[Any]


@dataclass
class Step:
    """One step; `inputs` and `outputs` are numbers of slots. A step with one output has an int."""

    run: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: int | tuple[int, ...] | None
    draws: bool = False
    """Whether it takes random numbers."""
    number: int = 0
    frees: tuple[int, ...] = ()
    name: str = ""
    """The operator of the model that it belongs to, as errors name it."""
    placement: Placement | None = None
    """Where the last of what it makes lies."""

    @property
    def made(self) -> tuple[int, ...]:
        return (self.outputs,) if isinstance(self.outputs, int) else self.outputs or ()


watch: Callable[[Step], Callable[..., Any]] | None = None
"""What to run in place of a step while a plan or a trace observes the program (see `watched_steps`)."""


@contextmanager
def watched_steps(by: Callable[[Step], Callable[..., Any]]) -> Iterator[None]:
    """While the body runs, run ``by(step)`` in place of every step."""
    global watch
    before, watch = watch, by
    try:
        yield
    finally:
        watch = before


def execute(steps: Sequence[Step], values: Any, stream: RandomStream) -> None:
    """Run the steps on `values`, by slot."""
    for step in steps:
        given = [values[slot] for slot in step.inputs]
        run = step.run if watch is None else watch(step)
        made = run(stream.at(step.number), *given) if step.draws else run(*given)
        given.clear()
        outputs = step.outputs
        if isinstance(outputs, int):
            values[outputs] = made
        elif outputs is not None:
            for slot, part in zip(outputs, made, strict=True):
                values[slot] = part
        made = None
        for slot in step.frees:
            values[slot] = None


def free_early(steps: Sequence[Step], needed: set[int]) -> None:
    """Let each step free what neither later ones nor `needed` use."""
    later = set(needed)
    for step in reversed(steps):
        touched = {*step.inputs, *step.made}
        step.frees = tuple(sorted(touched - later))
        later |= touched


class Checkpoint:
    """Steps that are computed again in backward instead of keeping what they have made."""

    def __init__(
        self, steps: Sequence[Step], inputs: tuple[int, ...], outputs: tuple[int, ...], keeps_random: bool
    ) -> None:
        self.steps, self.inputs, self.outputs, self.keeps_random = steps, inputs, outputs, keeps_random
        free_early(steps, set(outputs))

    def __call__(self, stream: RandomStream, *tensors: Tensor) -> tuple[Tensor, ...]:
        replay = Replay(stream.generator if self.keeps_random else None)
        held = dict(zip(self.inputs, tensors, strict=True))
        wanted = [slot for slot, x in held.items() if x.requires_grad]  # torch refuses buffers that are written to

        def body(*tensors: Tensor) -> tuple[Tensor, ...]:
            values: dict[int, Any] = {**held, **dict(zip(wanted, tensors, strict=True))}
            with agreement(False), replay:  # in backward it has not been switched off yet
                execute(self.steps, values, stream)
            return tuple(values[slot] for slot in self.outputs)

        given = [held.pop(slot) for slot in wanted]
        if not torch.is_grad_enabled():
            return body(*given)
        with set_checkpoint_early_stop(False):  # it could stop before a message on some workers, after it on others
            made = checkpoint(body, *given, use_reentrant=False, preserve_rng_state=self.keeps_random)
        return tuple(made)


@dataclass
class Bucket:
    """Parameters whose gradients are summed in one message."""

    operator: Shared
    key: int
    first: int
    """The step that uses one of them first."""
    slots: list[int] = field(default_factory=list)
    bytes: int = 0


@dataclass
class Program:
    """A model on this worker, for one structure of its inputs; `placing.place` makes it."""

    workers: Workers
    name: str
    count: int
    """How many slots there are."""
    sources: list[tuple[int, ValueSource]]
    constants: Mapping[str, Tensor]
    steps: list[Step]
    results: list[int]
    """The slots of the outputs."""
    outputs: list[Placement]
    report: Report
    draws: bool = False
    """Whether any step takes random numbers."""
    written: frozenset[int] = frozenset()
    """The slots of sources that the model changes in place."""
    _buckets: dict[tuple[int, ...], list[Bucket]] = field(default_factory=dict)
    _pieces: CompiledPieces | None = None
    """What `torch.compile` has made of the steps."""

    def __call__(
        self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """The flat outputs, as blocks; all workers call it together, with the structure that it was placed for."""
        values: Values = [None] * self.count
        for slot, source in self.sources:
            if source.kind == "input":
                values[slot] = inputs[int(source.name)]
            elif source.kind == "constant":
                values[slot] = self.constants[source.name]
            else:
                held = parameters if source.kind == "parameter" else buffers
                values[slot] = held[source.name] if source.name in held else self.constants[source.name]
        mode = torch.is_grad_enabled()
        with agreement(False):
            pieces = self._compiled()
            steps = self._with_sums(values, among=pieces is None)
            stream = RandomStream.begin(self.workers, self.name) if self.draws else RandomStream(0)
            try:
                if pieces is None:
                    execute(steps, values, stream)
                else:
                    pieces(values, stream)
            finally:
                torch._C._set_grad_enabled(mode)
        return [values[slot] for slot in self.results]

    def _compiled(self) -> CompiledPieces | None:
        """What `torch.compile` makes of the steps, while it is at work."""
        from .compiled import CompiledPieces, compiler

        if compiler() is None or watch is not None:
            return None
        if self._pieces is None:
            self._pieces = CompiledPieces(self.steps, self.results)
        return self._pieces

    def _with_sums(self, values: Values, among: bool) -> Sequence[Step]:
        """The steps, after which the gradients of parameters are summed over the workers.

        A sum begins when backward has come past the first step that uses one of its parameters, if these are put `among` the
        steps; else at the end of backward.
        """
        if self.workers.size == 1 or not torch.is_grad_enabled():
            return self.steps
        wanted = tuple(
            slot
            for slot, source in self.sources
            if source.kind in ("parameter", "buffer") and slot not in self.written and values[slot].requires_grad
        )
        if wanted not in self._buckets:
            self._buckets[wanted] = self._packed(wanted, values)
        steps, done = list[Step](), 0
        for bucket in self._buckets[wanted]:
            sum = GradientSum(bucket.operator.as_set(), Ticket(bucket.key, 0))
            slots, ended = tuple(bucket.slots), end([values[slot] for slot in bucket.slots], sum)
            for slot, value in zip(slots, ended if among else begin(ended, sum), strict=True):
                values[slot] = value
            if not among:
                continue
            steps += self.steps[done : bucket.first]
            steps.append(Step(lambda *blocks, sum=sum: begin(blocks, sum), slots, slots))
            done = bucket.first
        return steps + self.steps[done:]

    def _packed(self, slots: Sequence[int], values: Values) -> list[Bucket]:
        """Parameters of one dtype together, in the order in which the steps use them."""
        uses: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            for slot in step.inputs:
                uses.setdefault(slot, number)
        buckets: list[Bucket] = []
        current: dict[tuple[torch.dtype, torch.device], Bucket] = {}
        names = {slot: source.name for slot, source in self.sources}
        for slot in sorted(slots, key=lambda slot: uses.get(slot, len(self.steps))):
            value = values[slot]
            kind = value.dtype, value.device
            bucket = current.get(kind)
            if bucket is None or bucket.bytes + value.nbytes > FULL:
                name = f"{names[slot]}, and more, of {self.name}"
                operator = Shared(self.workers.transport, self.workers.team, name)
                bucket = current[kind] = Bucket(operator, key_of(name), uses.get(slot, len(self.steps)))
                buckets.append(bucket)
            bucket.slots.append(slot)
            bucket.bytes += value.nbytes
        return buckets
