"""A function of tensors on a grid: recorded and placed once for each structure of its inputs, and run.

call      one all-reduce: same function, same step, a known structure of inputs and state on all workers?
          unchanged: the program runs, and sends no agreement of its own
          changed anywhere: all agree on the global shapes, record, compare what they have recorded, and place it
backward  one all-reduce where the cotangent enters
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import PartitionError, UnsupportedError, describe
from ..grid import Grid, Layout
from ..nn.engine.agreement import (
    Ballot,
    Structure,
    agree_common,
    agree_layout,
    agree_plan,
    agree_same,
    is_on,
    key_of,
    tell,
)
from ..nn.engine.grid_random import draw_key
from ..nn.engine.mode import agree_mode
from ..nn.engine.module import problem_with_inference, refuse_transforms
from ..nn.engine.operator import Operator, Ticket, apply
from ..nn.engine.plans import KEPT, LayerPlans
from ..nn.parameters.blocks import Spread
from ..nn.parameters.replicas import Replica, agree_replicas, is_due
from ..nn.windows.windowed_layer import as_batch
from ..partition import CartesianPartition, Partition
from .inputs import Bound, Inputs
from .placement import Cut, Placement
from .program import Program
from .recording.containers import described, unflatten, without_values
from .recording.indices import limits_of, problem_with
from .recording.recording import Recording
from .recording.state import Snapshot, modules_of, tensors_of
from .report import Report
from .roots import constants_of

Gather = Literal["report", "refuse"]
_kinds, _kinds_without_grad = (
    operator.attrgetter("dtype", "device", "requires_grad"),
    operator.attrgetter("dtype", "device"),
)
_dtypes = operator.attrgetter("dtype")


class Passed(Operator):
    """The identity, both ways: a place in the graph where the workers meet."""

    @property
    def adjoint(self) -> Passed:
        return self

    def __call__(self, x: Tensor) -> Tensor:
        return x


@dataclass
class Run:
    """How inputs of one structure are run."""

    recording: Recording
    program: Program
    P_y: Any
    needs_grad: list[bool]
    """Of each input, on whichever worker."""
    records: list[bool]
    """Whether each output needs a gradient."""
    limits: dict[int, int]
    """Of inputs that are indices of embeddings, how many rows they have."""
    held: dict[str, dict[str, tuple[dict[str, Any], str]]]
    """By kind and name, where the parameters and buffers are that it reads."""

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        given = [
            x.detach().requires_grad_() if needed and not x.requires_grad and torch.is_grad_enabled() else x
            for x, needed in zip(inputs, self.needs_grad, strict=True)
        ]
        values = {kind: {name: held[key] for name, (held, key) in of.items()} for kind, of in self.held.items()}
        return self.program(values["parameter"], values["buffer"], given)


@dataclass
class State:
    """What modules hold, and a number for it."""

    number: int
    snapshot: Snapshot

    def __post_init__(self) -> None:
        modules = self.snapshot.modules.values()
        self.parameters = [p for m in modules for p in m._parameters.values() if p is not None]
        self.buffers = [b for m in modules for b in m._buffers.values() if b is not None]


class Runner:
    """One function on a grid: the forward of a model, a method of it, or a function that calls modules.

    Attributes
    ----------
    P_y : where the outputs of the last call lie, in the form in which it returned them: the partition of each tensor; None
        for a number that every worker has
    """

    def __init__(
        self,
        says: str,
        call: Callable[..., Any],
        roots: Mapping[str, torch.nn.Module],
        inputs: Inputs,
        gather: Gather,
        as_written: Callable[[], AbstractContextManager[None]],
        key: str = "",
    ) -> None:
        self.says, self.call, self.roots, self.inputs, self.gather = says, call, dict(roots), inputs, gather
        self.P_x, self.as_written = inputs.P_x, as_written
        transport = self.P_x.transport
        key = key or f"#{transport.ordinal(says)}"
        self.ticket = Ticket(key_of(f"{says} {self.P_x.ranks} {key}"), 0)
        self._plans, self._meet = LayerPlans(), Passed(transport, self.P_x.team, says)
        self._states: deque[State] = deque(maxlen=KEPT)
        self._count = 0
        self._last: Run | None = None
        self._outside: Callable[[], Recording] | None = None
        self._recordings: dict[Hashable, Recording] = {}
        self.replicas_are_new = True
        """Whether parameters were loaded since the workers have compared them, as far as this one knows."""

    @property
    def P_y(self) -> Any:
        if self._last is None:
            raise PartitionError(
                f"{self.says}: where its outputs lie is known after the first call.\n"
                "  fix: distribute(..., example=x), with a global input or its shape, records at once."
            )
        return self._last.P_y

    def report(self) -> Report:
        """What the last call gathers and moves."""
        _ = self.P_y
        assert self._last is not None
        return self._last.program.report

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = self.inputs.bound(args, kwargs)
        bound, problem = (None, found) if isinstance(found, str) else (found, None)
        tensors = bound.tensors if bound is not None else []
        for root in self.roots.values():
            refuse_transforms(root, self.says, tensors)
        if not self.P_x.active:
            return self._nothing(tensors)
        state = self._state()
        problem = problem or problem_with_inference(state.parameters, tensors)
        structure = self._structure(bound, state) if bound is not None and problem is None else None
        plan = self._plans.find(structure) if structure is not None and not self.replicas_are_new else None
        if plan is not None:
            problem = problem_with(tensors, plan.assigned["run"].limits)
        ticket = self.ticket.called_again()
        transport, team, number = self.P_x.transport, self.P_x.team, plan.number if plan is not None else 0
        number = agree_plan(transport, team, self.says, ticket.number, number, problem)
        self.ticket = ticket  # a call counts when all have joined it
        assert bound is not None
        if (plan is None or not number) and self._plans.count:  # perhaps one that is not the newest fits everywhere
            number = agree_common(transport, team, self.says, self._plans.candidates(structure)) if is_on() else 0
            plan = self._plans.take(number) if number else None
            if plan is not None:
                self._compare_replicas()
        elif plan is not None and is_due(ticket.call):
            self._compare_replicas()
        if plan is None or not number:
            run = self._prepared(bound, state)
            self._compare_replicas()
            y = self._run(run, bound.tensors)
            self._keep(bound, run)  # only now that it went well
            return y
        return self._run(plan.assigned["run"], bound.tensors)

    def _run(self, run: Run, tensors: Sequence[Tensor]) -> Any:
        self._last = run
        outputs = run(tensors)
        return run.recording.outputs(
            [apply(y, self._meet, self.ticket, True) if r else y for y, r in zip(outputs, run.records, strict=True)]
        )

    def _compare_replicas(self) -> None:
        """Raise on all workers unless all hold the same parameters and buffers; all hold tensors of the same shapes."""
        held = [
            (f"{key}.{name}" if key else name, value)
            for key, root in self.roots.items()
            for name, value in (*root.named_parameters(), *root.named_buffers())
        ]
        grid = self.P_x.grid
        spreads = [Spread(grid, (None,) * value.dim(), tuple(value.shape)) for _, value in held]
        replicas = [Replica(name, value, spread) for (name, value), spread in zip(held, spreads, strict=True)]
        agree_replicas(self.P_x.transport, self.P_x.team, self.says, replicas)
        self.replicas_are_new = False

    # What a recording belongs to

    def _structure(self, bound: Bound, state: State) -> Hashable:
        """All that a recording depends on, as far as this worker can see."""
        inputs = tuple([(Structure.of(x), _format(x)) for x in bound.tensors])
        return inputs, bound.tree, tuple(bound.partitions), state.number, _look_of(state), constants_of(self.call)

    def _state(self) -> State:
        """What the modules hold, apart from the numbers in their tensors: as it was once before, or new."""
        for state in reversed(self._states):
            if state.snapshot.holds():
                return state
        self._count += 1
        self._states.append(State(self._count, Snapshot(modules_of(self.roots))))
        return self._states[-1]

    def _mode(self, state: State) -> Hashable:
        """What has to be the same on all workers, besides the inputs."""
        records = torch.is_grad_enabled()
        casts = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
        return (
            tuple([(m.training, vars(m).get("track_running_stats")) for m in state.snapshot.modules.values()]),
            tuple([(records and p.requires_grad, p.dtype, p.device.type) for p in state.parameters]),
            tuple([b.dtype for b in state.buffers]),
            (records, torch.get_default_dtype(), str(torch.get_default_device())),
            tuple(casts),
        )

    def _keep(self, bound: Bound, run: Run) -> None:
        """Keep a run for inputs that look so, and modules as they are after it was recorded."""
        self._plans.add(self._structure(bound, self._state()), {"run": run})

    # Recording and placing, all workers together

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record and place at once what a call with these global tensors will do."""
        whole = self.inputs.bound(args, kwargs)
        if isinstance(whole, str):
            raise PartitionError(f"{self.says}: `example`: {whole}")
        device = next((p.device for root in self.roots.values() for p in root.parameters()), torch.device("cpu"))
        structures = [
            Structure.of(x)._replace(device=device if x.is_meta else x.device, requires_grad=x.requires_grad)
            for x in whole.tensors
        ]
        formats = [torch.contiguous_format] * len(structures)
        if not self.P_x.active:
            self._outside = lambda: self.record(whole, structures, formats)
            return
        layouts = [
            Layout.balanced(P.grid, x.shape) if isinstance(P, CartesianPartition) else None
            for x, P in zip(whole.tensors, whole.partitions, strict=True)
        ]
        self._plans.begin()
        self._last = self._recorded(whole, layouts, structures, formats)
        rank = self.P_x.transport.rank
        shapes = [
            s.shape if layout is None else layout.block(rank).shape
            for s, layout in zip(structures, layouts, strict=True)
        ]
        blocks = [
            torch.empty(shape, dtype=s.dtype, device=s.device).requires_grad_(s.requires_grad)
            for shape, s in zip(shapes, structures, strict=True)
        ]
        self._keep(replace(whole, tensors=blocks), self._last)

    def _prepared(self, bound: Bound, state: State) -> Run:
        transport, team = self.P_x.transport, self.P_x.team
        self._plans.begin()
        module = _Several(self.roots) if len(self.roots) != 1 else next(iter(self.roots.values()))
        agree_mode(transport, team, self.says, self._mode(state), module)
        self._agree_on(described(bound.tree), "needs the same containers, and the same values in them, on all workers.")
        layouts, structures = self._layouts(bound)
        formats = [_format(x) for x in bound.tensors]
        if not self._is_same(str(formats)):
            formats = [torch.contiguous_format] * len(formats)
        run = self._recorded(bound, layouts, structures, formats)
        if run.limits:
            agree_plan(transport, team, self.says, key_of(self.says), 0, problem_with(bound.tensors, run.limits))
        return run

    def _layouts(self, bound: Bound) -> tuple[list[Layout | None], list[Structure]]:
        """Where the inputs lie, agreed by all, and their global structure."""
        transport, layouts, structures = self.P_x.transport, list[Layout | None](), list[Structure]()
        for x, P in zip(bound.tensors, bound.partitions, strict=True):
            if isinstance(P, CartesianPartition):
                layout, structure = agree_layout(transport, self.P_x.team, self.says, P.grid, x)
                layouts.append(layout)
                structures.append(structure._replace(shape=layout.global_shape))
            else:
                shapes, structure = agree_same(transport, self.P_x.team, self.says, x, [(self.P_x.team, True)])
                layouts.append(None)
                structures.append(structure._replace(shape=shapes[0]))
        return layouts, structures

    def _recorded(
        self,
        bound: Bound,
        layouts: Sequence[Layout | None],
        structures: Sequence[Structure],
        formats: Sequence[torch.memory_format],
    ) -> Run:
        from .placing import place  # which, as recording, imports torch's tracer: seconds that only a call needs

        recording = self._agreed(lambda: self.record(bound, structures, formats))
        program = place(recording, layouts, self.P_x, self.gather, self.says)
        found: dict[str, dict[str, Any]] = {"parameter": {}, "buffer": {}}
        places = {holding.name: (holding.kind, holding.places[0]) for holding in tensors_of(modules_of(self.roots))}
        for source in recording.sources.values():
            if source.name in places and source.kind in found:
                found[source.kind][source.name] = places[source.name][1]
        leaves = next(node for node in recording.module.graph.nodes if node.op == "output").args[0]
        records = [leaf.meta["tensor_meta"].requires_grad for leaf in leaves]
        pairs = zip(program.outputs, leaves, strict=True)
        partitions = [self._partition(placement, leaf.meta["val"].dim()) for placement, leaf in pairs]
        P_y = unflatten(without_values(recording.returned), partitions)
        return Run(recording, program, P_y, [s.requires_grad for s in structures], records, limits_of(recording), found)

    def record(
        self, bound: Bound, structures: Sequence[Structure], formats: Sequence[torch.memory_format]
    ) -> Recording:
        """What the function does with global inputs of these structures."""
        from .recording.record import Like, record

        likes = [
            Like(s.shape, s.dtype, s.device, s.requires_grad, format)
            for s, format in zip(structures, formats, strict=True)
        ]
        with self.as_written():
            return record(self.call, self.roots, likes, bound.tree, self.says)

    def _agreed(self, make: Callable[[], Recording]) -> Recording:
        """What all workers make alike; if one cannot, or they differ, all raise the same."""
        recording, error = None, None
        try:
            recording = make()
        except Exception as found:
            error = found
        transport, team = self.P_x.transport, self.P_x.team
        ballot = Ballot()
        failed, digest = ballot.any(error is not None), ballot.equal(recording.digest if recording else None)
        if is_on() and len(team) > 1:
            ballot.count(transport, team, self.says)
            if ballot.read(failed):
                kind = UnsupportedError if isinstance(error, UnsupportedError) else PartitionError
                told = tell(transport, team, None if error is None else str(error) or repr(error))
                if len(told) == 1 and error is not None:
                    raise kind(str(error)) from error.__cause__
                raise kind(describe(f"{self.says} cannot be recorded on some workers.", told))
            if ballot.read(digest) is None:
                told = tell(transport, team, f"the recording has the checksum {recording.digest if recording else 0:x}")
                fix = "build the model alike on all workers; no ranks, times or random numbers in `forward`."
                raise PartitionError(describe(f"{self.says} does not do the same on all workers.", told, fix))
        elif error is not None:
            raise error
        assert recording is not None
        return recording

    def _agree_on(self, text: str, asked: str) -> None:
        if not self._is_same(text):
            raise PartitionError(describe(f"{self.says} {asked}", tell(self.P_x.transport, self.P_x.team, text)))

    def _is_same(self, text: str) -> bool:
        """Whether all workers have the same text."""
        if not is_on() or len(self.P_x.team) == 1:
            return True
        ballot = Ballot()
        place = ballot.equal(key_of(text))
        ballot.count(self.P_x.transport, self.P_x.team, self.says)
        return ballot.read(place) is not None

    def _partition(self, placement: Placement, dim: int) -> Partition | None:
        """Where an output of that many dims lies; None if it is a number that every worker has."""
        if isinstance(placement, Cut):
            return CartesianPartition(self.P_x.transport, placement.layout.grid)
        return CartesianPartition(self.P_x.transport, Grid(self.P_x.ranks, (1,) * dim)) if dim else None

    # Workers outside

    def _nothing(self, tensors: Sequence[Any]) -> Any:
        """A worker outside holds no part of any output, and can call `backward` all the same.

        What the others return, and whether they draw random numbers, it knows if there was an example.
        """
        own = [p for root in self.roots.values() for p in root.parameters()]
        parts = [x.flatten()[:0] for x in (*tensors, *own) if isinstance(x, Tensor) and x.is_floating_point()]
        nothing = torch.cat(parts) if parts else torch.empty(0)
        if tensors and isinstance(tensors[0], Tensor):
            nothing = as_batch(nothing, tensors[0])
        if self._outside is None:
            return nothing
        state = self._state()
        key = state.number, self._mode(state)
        if key not in self._recordings:
            self._recordings[key] = self._outside()
        if self._recordings[key].draws:
            draw_key(self.P_x.transport, self.P_x.team, self.says)
        return self._recordings[key].outputs(_Same([nothing]))


def _look_of(state: State) -> Hashable:
    """What the mode is made of, as far as a state is not another one with it: found sooner, in every call."""
    records = torch.is_grad_enabled()
    with torch._C.DisableTorchFunctionSubclass():  # parameters answer in a fraction of the time
        kinds = tuple(map(_kinds if records else _kinds_without_grad, state.parameters))
    return (
        kinds,
        tuple(map(_dtypes, state.buffers)),
        (records, torch.get_default_dtype(), torch.get_default_device()),
        tuple([(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]),
    )


class _Same(list[Any]):
    """One value at every place."""

    def __getitem__(self, place: Any) -> Any:
        return super().__getitem__(0)


class _Several(torch.nn.Module):
    """Some modules as one, for the text of an error."""

    def __init__(self, roots: Mapping[str, torch.nn.Module]) -> None:
        super().__init__()
        self._modules.update(roots)


def _format(x: Tensor) -> torch.memory_format:
    """In which order the dims of a block lie in memory, as far as a global tensor has it too."""
    if x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if x.dim() == 5 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format
