"""A function of tensors on a grid: recorded and placed once for each structure of its inputs, then run.

call      one all-reduce: do all workers make the same call, with a known structure of inputs and state?
          yes: the program runs, without further agreements
          no, on any worker: all agree on the global shapes, record, compare their recordings, and place them
backward  one all-reduce where the cotangent enters
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import PartitionError
from ..grid import Layout
from ..nn.engine.agreement import Structure, agree_common, agree_plan, is_on, key_of
from ..nn.engine.arguments import problem_with_inference, refuse_transforms
from ..nn.engine.grid_random import draw_key, sequential
from ..nn.engine.operator import CallId, Operator, apply
from ..nn.engine.plans import PLANS_KEPT, LayerPlans
from ..nn.parameters.blocks import sharding_over
from ..nn.parameters.gradient_wire import current_wire
from ..nn.parameters.no_sync import sums_gradients
from ..nn.parameters.replicas import Replica, agree_replicas, is_due
from ..nn.parameters.whole_tensor import refuse_fully_shard
from ..nn.windows.windowed_layer import as_batch
from ..operators.formats import memory_format_of
from ..partition import CartesianPartition
from ..torch_internals.modes import without_torch_function
from .inputs import Bound, Inputs
from .local_loss import watch_for_local_loss
from .placement import Cut
from .program import FailedCheck
from .recorder import FunctionRecorder, Options, Run
from .recording.digest import checksum_of
from .recording.indices import problem_with
from .recording.recording import Recording
from .recording.state import Snapshot, modules_of
from .report import Report
from .roots import constants_of
from .same_blocks import warn_of_same_blocks

_kinds, _kinds_without_grad = (
    operator.attrgetter("shape", "dtype", "device", "requires_grad"),
    operator.attrgetter("shape", "dtype", "device"),
)
_kinds_of_buffers = operator.attrgetter("shape", "dtype")
InputStructures = tuple[tuple[Structure, torch.memory_format], ...]


class AgreementPoint(Operator):
    """The identity, which is its own adjoint: a node of the autograd graph at which the workers agree in backward."""

    @property
    def adjoint(self) -> AgreementPoint:
        return self

    def __call__(self, x: Tensor) -> Tensor:
        return x


@dataclass
class State:
    """A numbered snapshot of the state of modules."""

    number: int
    snapshot: Snapshot

    def __post_init__(self) -> None:
        modules = self.snapshot.modules.values()
        self.parameters = [p for m in modules for p in m._parameters.values() if p is not None]
        self.buffers = [b for m in modules for b in m._buffers.values() if b is not None]
        self.reads = list[Tensor]()
        """Tensors whose numbers have decided what was recorded in this state."""

    def now_reads(self, tensors: Iterable[Tensor]) -> None:
        """Add to `reads`."""
        self.reads += [x for x in tensors if all(x is not each for each in self.reads)]


class Runner(FunctionRecorder):
    """One function on a grid: the forward of a model, a method of it, or a function that calls modules.

    Attributes
    ----------
    P_y : the partition of each output of the last call, in the containers that it returned; None for a scalar, which
        every worker holds
    """

    def __init__(
        self,
        says: str,
        call: Callable[..., Any],
        roots: Mapping[str, torch.nn.Module],
        inputs: Inputs,
        options: Options,
        as_written: Callable[[], AbstractContextManager[None]],
        key: str = "",
    ) -> None:
        super().__init__(says, call, roots, inputs.P_x, options, as_written)
        self.inputs = inputs
        transport = self.P_x.transport
        key = key or f"#{transport.ordinal(says)}"
        self.call_id = CallId(key_of(f"{says} {self.P_x.ranks} {key}"), 0)
        self._plans, self._agreement_point = LayerPlans(), AgreementPoint(transport, self.P_x.team, says)
        self._states: deque[State] = deque(maxlen=PLANS_KEPT)
        self._count = 0
        self._last: Run | None = None
        self._outside: Callable[[], Recording] | None = None
        self._recordings: dict[Hashable, Recording] = {}
        self.replicas_are_new = True
        """Whether this worker has loaded parameters since the workers last compared them."""

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

    @property
    def recording(self) -> Recording:
        """That of the last call."""
        assert self._last is not None
        return self._last.recording

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
        call_id = self.call_id.called_again()
        transport, team, number = self.P_x.transport, self.P_x.team, plan.number if plan is not None else 0
        called = call_id.number + (not sums_gradients())  # a call under `no_sync` is another one
        number = agree_plan(transport, team, self.says, called, number, problem)
        self.call_id = call_id  # a call counts only once all workers have joined it
        assert bound is not None
        if (plan is None or not number) and self._plans.count:  # an older plan may fit on all workers
            number = agree_common(transport, team, self.says, self._plans.candidates(structure)) if is_on() else 0
            plan = self._plans.take(number) if number else None
            if plan is not None:
                self._compare_replicas()
        elif plan is not None and is_due(call_id.call):
            self._compare_replicas()
        if plan is None or not number:
            run = self._prepared(bound, state)
            self._compare_replicas()
            y = self._run(run, bound.tensors)
            self._keep(bound, run)  # only after a successful call
            return y
        run = plan.assigned["run"]
        if run.was_prepared:
            run.was_prepared = False
            blocks = [*zip(bound.tensors, bound.partitions, strict=True)]
            warn_of_same_blocks(transport, team, self.says, blocks)
        return self._run(run, bound.tensors)

    def _run(self, run: Run, tensors: Sequence[Tensor]) -> Any:
        self._last = run
        try:
            made = run(tensors)
        except FailedCheck as failed:
            raise self.error_of(run, failed, tensors) from None
        outputs = [
            apply(y, self._agreement_point, self.call_id, True) if r else y
            for y, r in zip(made, run.outputs_need_grad, strict=True)
        ]
        if not run.was_differentiated and torch.is_grad_enabled():
            self._watch(run, outputs)
        return run.recording.outputs(outputs)

    def _watch(self, run: Run, outputs: Sequence[Tensor]) -> None:
        """Let the first backward through these outputs see whether it is that of a local loss."""

        def seen() -> bool:
            before, run.was_differentiated = run.was_differentiated, True
            return before

        for y, placement in zip(outputs, run.program.outputs, strict=True):
            if isinstance(placement, Cut) and y.grad_fn is not None:
                watch_for_local_loss(y, self.P_x.transport, self.P_x.team, self.says, seen)

    def _compare_replicas(self) -> None:
        """Raise on all workers unless all hold the same parameters and buffers, whose shapes are known to be equal."""
        held = [
            (f"{key}.{name}" if key else name, value)
            for key, root in self.roots.items()
            for name, value in (*root.named_parameters(), *root.named_buffers())
        ]
        grid = self.P_x.geometry
        replicas = [Replica(name, value, sharding_over(value, grid)) for name, value in held]
        agree_replicas(self.P_x.transport, self.P_x.team, self.says, replicas)
        self.replicas_are_new = False

    # What a recording depends on

    def _structure(self, bound: Bound, state: State, inputs: InputStructures | None = None) -> Hashable:
        """Everything that a recording depends on, as seen by this worker; `inputs` in place of those of `bound`."""
        if inputs is None:
            inputs = tuple([(Structure.of(x), memory_format_of(x)) for x in bound.tensors])
        return inputs, bound.tree, tuple(bound.partitions), state.number, quick_mode(state), constants_of(self.call)

    def _state(self) -> State:
        """The state of the modules, apart from the values of their tensors: a known one, or a new one."""
        for state in reversed(self._states):
            if state.snapshot.holds():
                return state
        self._count += 1
        state = State(self._count, Snapshot(modules_of(self.roots)))
        refuse_fully_shard(self.says, state.snapshot.modules.values(), state.parameters)
        self._states.append(state)
        return state

    def _mode(self, state: State) -> Hashable:
        """What must be equal on all workers besides the inputs."""
        records = torch.is_grad_enabled()
        casts = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
        return (
            tuple([(m.training, vars(m).get("track_running_stats")) for m in state.snapshot.modules.values()]),
            tuple([(records and p.requires_grad, p.dtype, p.device.type) for p in state.parameters]),
            tuple([b.dtype for b in state.buffers]),
            (records, torch.get_default_dtype(), str(torch.get_default_device()), current_wire()),
            (*casts, sequential.get() is None),
        )

    def _keep(self, bound: Bound, run: Run, inputs: InputStructures | None = None) -> None:
        """Keep a run for inputs of this structure, and for the state in which recording has left the modules."""
        state = self._state()
        state.now_reads(run.recording.reads)
        self._plans.add(self._structure(bound, state, inputs), {"run": run})

    # Recording and placing, all workers together

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record and place a call with these global tensors, without running it."""
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
            self._outside = lambda: self.record(whole.tree, structures, formats)
            return
        layouts = [
            Layout.balanced(P.geometry, x.shape) if isinstance(P, CartesianPartition) else None
            for x, P in zip(whole.tensors, whole.partitions, strict=True)
        ]
        self._plans.begin()
        self._last = self._recorded(whole.tree, layouts, structures, formats)
        self._last.was_prepared = True
        rank, inputs = self.P_x.transport.rank, list[tuple[Structure, torch.memory_format]]()
        for s, layout, format in zip(structures, layouts, formats, strict=True):
            shape = s.shape if layout is None else layout.block(rank).shape
            inputs.append((s._replace(shape=shape, requires_grad=s.requires_grad and s.records), format))
        self._keep(whole, self._last, tuple(inputs))

    def _prepared(self, bound: Bound, state: State) -> Run:
        self._plans.begin()
        return self.agreed_run(bound, self._mode(state))

    # Workers outside the grid

    def _nothing(self, tensors: Sequence[Any]) -> Any:
        """Empty outputs, for a worker outside the grid; `backward` can be called on them as on the other workers.

        If there was an example, they come in the containers that the model returns, and a random key is drawn where the
        other workers draw one.
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


def quick_mode(state: State) -> Hashable:
    """The parts of the mode that can change while the state stays the same, collected fast enough for every call."""
    records = torch.is_grad_enabled()
    with without_torch_function():  # attributes of parameters are read several times faster
        kinds = tuple(map(_kinds if records else _kinds_without_grad, state.parameters))
    return (
        kinds,
        tuple(map(_kinds_of_buffers, state.buffers)),
        tuple(map(checksum_of, state.reads)),
        (records, torch.get_default_dtype(), torch.get_default_device(), current_wire()),
        tuple([(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]),
        sequential.get() is None,
    )


class _Same(list[Any]):
    """A list with the same value at every index."""

    def __getitem__(self, place: object) -> Any:
        return super().__getitem__(0)
