"""The program of a recording: a flat list of steps on this worker's tensors, which are freed after their last use.

    step         a function of some tensors, the slots of its results, and the tensors that are not needed afterwards
    switch       turns autograd or autocast on or off for the steps that follow
    checkpoint   steps that are recomputed in backward; their messages are then sent again, on all workers alike

A program makes no agreements: the caller has agreed on the call. Gradients of parameters are summed in a few messages
that overlap with backward (`nn.parameters.gradient_buckets`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from ..errors import PartitionError
from ..nn.engine.agreement import agreement, key_of
from ..nn.engine.operator import CallId
from ..nn.parameters.blocks import ReplicatedBlock
from ..nn.parameters.gradient_buckets import FULL, GradientSum, begin, end
from ..operators.random.random_stream import RandomStream
from ..torch_internals.switches import exit_autocast, set_grad_enabled
from .placement import Placement, Workers
from .random import Replay, begun
from .recording.recording import ValueSource
from .report import Report

if TYPE_CHECKING:
    from .compiled import CompiledPieces

Values = list[Any]


class FailedCheck(PartitionError):
    """A check on values does not hold; raised on all workers."""

    def __init__(self, asked: str, message: str) -> None:
        super().__init__(asked)
        self.message = message
        """That of the recorded operator."""


@dataclass
class Step:
    """One step; `inputs` and `outputs` are slots: an int for a single output, a tuple for several."""

    run: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: int | tuple[int, ...] | None
    draws: bool = False
    """Whether it draws random numbers."""
    number: int = 0
    frees: tuple[int, ...] = ()
    name: str = ""
    """The operator of the model that it belongs to, as named in error messages."""
    placement: Placement | None = None
    """The placement of its last output."""

    @property
    def made(self) -> tuple[int, ...]:
        return (self.outputs,) if isinstance(self.outputs, int) else self.outputs or ()


watch: Callable[[Step], Callable[..., Any]] | None = None
"""Gives the function to run in place of a step while a plan or a trace observes the program (see `watched_steps`)."""


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
    try:
        for step in steps:
            given = [values[slot] for slot in step.inputs]
            run = step.run if watch is None else watch(step)
            made = run(stream.at(step.number), *given) if step.draws else run(*given)
            given.clear()
            put(values, step.outputs, made)
            made = None
            for slot in step.frees:
                values[slot] = None
    except BaseException:
        leave_autocast(values.values() if isinstance(values, dict) else values)
        raise


def put(values: Any, outputs: int | tuple[int, ...] | None, made: Any) -> None:
    """Put what a step has made into its slots."""
    if isinstance(outputs, int):
        values[outputs] = made
    elif outputs is not None:
        for slot, part in zip(outputs, made, strict=True):
            values[slot] = part


def leave_autocast(entered: Iterable[Any]) -> None:
    """Leave the autocast modes among these values, which come in the order in which they were entered."""
    for mode in reversed([each for each in entered if isinstance(each, torch.autocast)]):
        exit_autocast(mode)


def free_early(steps: Sequence[Step], needed: set[int]) -> None:
    """Let each step free the slots that no later step uses and that are not in `needed`."""
    later = set(needed)
    for step in reversed(steps):
        touched = {*step.inputs, *step.made}
        step.frees = tuple(sorted(touched - later))
        later |= touched


class Checkpoint:
    """Steps that are recomputed in backward instead of keeping their results."""

    def __init__(
        self, steps: Sequence[Step], inputs: tuple[int, ...], outputs: tuple[int, ...], keeps_random: bool
    ) -> None:
        self.steps, self.inputs, self.outputs, self.keeps_random = steps, inputs, outputs, keeps_random
        free_early(steps, set(outputs))

    def __call__(self, stream: RandomStream, *tensors: Tensor) -> tuple[Tensor, ...]:
        replay = Replay(stream.generator if self.keeps_random else None)
        held = dict(zip(self.inputs, tensors, strict=True))
        wanted = [slot for slot, x in held.items() if x.requires_grad]  # torch refuses buffers changed in place

        def body(*tensors: Tensor) -> tuple[Tensor, ...]:
            values: dict[int, Any] = {**held, **dict(zip(wanted, tensors, strict=True))}
            with agreement(False), replay:  # in backward nobody else has switched agreement off
                execute(self.steps, values, stream)
            return tuple(values[slot] for slot in self.outputs)

        given = [held.pop(slot) for slot in wanted]
        if not torch.is_grad_enabled():
            return body(*given)
        with set_checkpoint_early_stop(False):  # could stop before a message on some workers, after it on others
            made = checkpoint(body, *given, use_reentrant=False, preserve_rng_state=self.keeps_random)
        return tuple(made)


@dataclass
class Bucket:
    """Parameters whose gradients are summed in one message."""

    operator: ReplicatedBlock
    key: int
    first: int
    """The first step that uses one of them."""
    slots: list[int] = field(default_factory=list)
    bytes: int = 0


@dataclass
class Program:
    """A model on this worker, for one structure of its inputs; made by `placing.place`."""

    workers: Workers
    name: str
    count: int
    """The number of slots."""
    sources: list[tuple[int, ValueSource]]
    constants: Mapping[str, Tensor]
    steps: list[Step]
    results: list[int]
    """The slots of the outputs."""
    outputs: list[Placement]
    report: Report
    draws: bool = False
    """Whether any step draws random numbers."""
    changed_slots: frozenset[int] = frozenset()
    """The slots of sources that the model changes in place."""
    cut_slots: frozenset[int] = frozenset()
    """The slots of parameters of which each worker has a block; steps gather them (`parameters.gather_steps`)."""
    _buckets: dict[tuple[int, ...], list[Bucket]] = field(default_factory=dict)
    _pieces: CompiledPieces | None = None
    """The steps as compiled by `torch.compile`."""

    def new_slot(self) -> int:
        self.count += 1
        return self.count - 1

    def __call__(
        self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """The flat outputs, as blocks. All workers call it together, with inputs of the placed structure."""
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
            stream = begun(self.workers, self.name) if self.draws else RandomStream(0)
            try:
                if pieces is None:
                    execute(steps, values, stream)
                else:
                    pieces(values, stream)
            finally:
                set_grad_enabled(mode)
        return [values[slot] for slot in self.results]

    def _compiled(self) -> CompiledPieces | None:
        """The compiled steps, while `torch.compile` is active."""
        from .compiled import CompiledPieces, compiler

        if compiler() is None or watch is not None:
            return None
        if self._pieces is None:
            self._pieces = CompiledPieces(self.steps, self.results)
        return self._pieces

    def _with_sums(self, values: Values, among: bool) -> Sequence[Step]:
        """The steps, extended so that backward sums the gradients of parameters over the workers.

        With `among`, the sum of a bucket is placed among the steps, and begins as soon as backward has passed the first
        step that uses one of its parameters; otherwise it begins at the end of backward.
        """
        if self.workers.size == 1 or not torch.is_grad_enabled():
            return self.steps
        wanted = tuple(
            slot
            for slot, source in self.sources
            if source.kind in ("parameter", "buffer")
            and slot not in self.changed_slots
            and slot not in self.cut_slots
            and values[slot].requires_grad
        )
        if wanted not in self._buckets:
            self._buckets[wanted] = self._packed(wanted, values)
        steps, done = list[Step](), 0
        for bucket in self._buckets[wanted]:
            held = [values[slot] for slot in bucket.slots]
            sum = GradientSum(bucket.operator.with_current_wire(), CallId(bucket.key, 0), held)
            slots, ended = tuple(bucket.slots), end(held, sum)
            for slot, value in zip(slots, ended if among else begin(ended, sum), strict=True):
                values[slot] = value
            if not among:
                continue
            steps += self.steps[done : bucket.first]
            steps.append(Step(lambda *blocks, sum=sum: begin(blocks, sum), slots, slots))
            done = bucket.first
        return steps + self.steps[done:]

    def _packed(self, slots: Sequence[int], values: Values) -> list[Bucket]:
        """Buckets of parameters of one dtype and device, in the order in which the steps use them."""
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
                operator = ReplicatedBlock(self.workers.transport, self.workers.team, name)
                bucket = current[kind] = Bucket(operator, key_of(name), uses.get(slot, len(self.steps)))
                buckets.append(bucket)
            bucket.slots.append(slot)
            bucket.bytes += value.nbytes
        return buckets
