"""Recording and placing a function on all workers together: they agree on its inputs, and compare their recordings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..comm.agreement import Vote, all_same, attempt, gather_lines, key_of
from ..errors import GridwiseError, InternalError, PartitionError, UnsupportedError
from ..grid import Grid, Layout
from ..nn.engine.agreement import Structure, agree_layout, agree_plan, agree_same, is_on
from ..nn.engine.mode import agree_mode
from ..operators.formats import memory_format_of
from ..partition import CartesianPartition, Partition
from .inputs import Bound
from .movement import movement
from .parameters.gather_steps import gather_parameters
from .placement import Cut, GlobalTensor, Placement, Replicated
from .program import FailedCheck, Program
from .recording.containers import Tree, described, unflatten, without_values
from .recording.indices import limits_of, problem_with
from .recording.lines import internal_errors_named
from .recording.recording import Recording
from .recording.state import modules_of, tensors_of
from .replicated_state import renew_shardings
from .same_blocks import warn_of_same_blocks

if TYPE_CHECKING:
    from .recording.checks import Checks

GatherOption = Literal["report", "refuse"]
CheckOption = Literal["raise", "skip"]


class Options(NamedTuple):
    """How a function runs: the arguments of `distribute` of these names."""

    gather: GatherOption = "report"
    prefetch_bytes: int = 1 << 26
    checks: CheckOption = "raise"


@dataclass
class Run:
    """A recording and its program: how a call with inputs of one structure is run."""

    recording: Recording
    program: Program
    P_y: Any
    needs_grad: list[bool]
    """Whether each input needs a gradient on any worker."""
    outputs_need_grad: list[bool]
    """Whether each output needs a gradient."""
    limits: dict[int, int]
    """For inputs that are indices of embeddings, by position: the number of rows."""
    stored: dict[str, dict[str, tuple[dict[str, Any], str]]]
    """Where the parameters and buffers that it reads are stored, by kind and name: a dict and a key."""
    with_failing: Callable[[Checks], Run]
    """Records the same call with a check that fails."""

    was_differentiated: bool = False
    """Whether backward has reached its outputs."""
    was_prepared: bool = False
    """Whether it was made for an example, and has not been called since."""

    def __call__(self, inputs: Sequence[Tensor], changes_buffers: bool = True) -> list[Tensor]:
        given = [
            x.detach().requires_grad_() if needed and not x.requires_grad and torch.is_grad_enabled() else x
            for x, needed in zip(inputs, self.needs_grad, strict=True)
        ]
        values = {kind: {name: stored[key] for name, (stored, key) in of.items()} for kind, of in self.stored.items()}
        buffers = values["buffer"] if changes_buffers else {name: x.clone() for name, x in values["buffer"].items()}
        return self.program(values["parameter"], buffers, given)

    def whole(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, whole on every worker, without a trace in buffers."""
        workers, name, found = self.program.workers, self.program.name, list[Tensor]()
        for y, placement in zip(self(inputs, False), self.program.outputs, strict=True):
            if isinstance(placement, Cut):
                value = GlobalTensor(placement.layout.global_shape, y.dtype, y.device, placement)
                y = movement(value, Replicated(), workers, name)(y)
            found.append(y.detach())
        return found


class FunctionRecorder:
    """Records a function and places it on blocks, for each structure of its inputs, alike on all workers."""

    def __init__(
        self,
        says: str,
        call: Callable[..., Any],
        roots: Mapping[str, torch.nn.Module],
        P_x: Partition,
        options: Options,
        as_written: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.says, self.call, self.roots, self.P_x, self.options = says, call, dict(roots), P_x, options
        self.as_written = as_written

    def agreed_run(self, bound: Bound, mode: Hashable) -> Run:
        """The run for a call with these blocks, once all workers agree on their mode, inputs and recordings."""
        transport, team = self.P_x.transport, self.P_x.team
        module = _Several(self.roots) if len(self.roots) != 1 else next(iter(self.roots.values()))
        agree_mode(transport, team, self.says, mode, module)
        grids = [str(P.shape) if isinstance(P, CartesianPartition) else "every worker" for P in bound.partitions]
        text = f"{described(bound.tree)} on {', '.join(grids)}"
        if not self._is_same(text):
            asked = "needs the same containers, and the same values in them, on the same grids on all workers."
            raise PartitionError(f"{self.says} {asked}", gather_lines(transport, team, text))
        layouts, structures = self._layouts(bound)
        warn_of_same_blocks(transport, team, self.says, [*zip(bound.tensors, bound.partitions, strict=True)])
        formats = [memory_format_of(x) for x in bound.tensors]
        if not self._is_same(str(formats)):
            formats = [torch.contiguous_format] * len(formats)
        run = self._recorded(bound.tree, layouts, structures, formats)
        if run.limits:
            agree_plan(transport, team, self.says, key_of(self.says), 0, problem_with(bound.tensors, run.limits))
        return run

    def _layouts(self, bound: Bound) -> tuple[list[Layout | None], list[Structure]]:
        """The layout of each input, agreed among all workers, and its global structure."""
        transport, layouts, structures = self.P_x.transport, list[Layout | None](), list[Structure]()
        for x, P in zip(bound.tensors, bound.partitions, strict=True):
            if isinstance(P, CartesianPartition):
                layout, structure = agree_layout(transport, self.P_x.team, self.says, P.geometry, x)
                layouts.append(layout)
                structures.append(structure._replace(shape=layout.global_shape))
            else:
                shapes, structure = agree_same(transport, self.P_x.team, self.says, x, [(self.P_x.team, True)])
                layouts.append(None)
                structures.append(structure._replace(shape=shapes[0]))
        return layouts, structures

    def _recorded(
        self,
        tree: Tree,
        layouts: Sequence[Layout | None],
        structures: Sequence[Structure],
        formats: Sequence[torch.memory_format],
        failing: Checks | None = None,
    ) -> Run:
        from .placing import place  # imports torch's tracer, which takes seconds: not before the first call

        recording = self._agreed(lambda: self.record(tree, structures, formats, failing))
        with internal_errors_named(self.says):
            program = place(recording, layouts, self.P_x, self.options.gather, self.says)
        found: dict[str, dict[str, Any]] = {"parameter": {}, "buffer": {}}
        places = {holding.name: (holding.kind, holding.places[0]) for holding in tensors_of(modules_of(self.roots))}
        for source in recording.sources.values():
            if source.name in places and source.kind in found:
                found[source.kind][source.name] = places[source.name][1]
        gather_parameters(program, found["parameter"], self.options.prefetch_bytes)
        leaves = next(node for node in recording.module.graph.nodes if node.op == "output").args[0]
        outputs_need_grad = [leaf.meta["tensor_meta"].requires_grad for leaf in leaves]
        pairs = zip(program.outputs, leaves, strict=True)
        partitions = [self._partition(placement, leaf.meta["val"].dim()) for placement, leaf in pairs]
        P_y = unflatten(without_values(recording.returned), partitions)
        return Run(
            recording,
            program,
            P_y,
            [s.requires_grad for s in structures],
            outputs_need_grad,
            limits_of(recording),
            found,
            partial(self._recorded, tree, layouts, structures, formats),
        )

    def error_of(self, run: Run, failed: FailedCheck, inputs: Sequence[Tensor]) -> BaseException:
        """What the sequential model raises where one of its checks on values fails; all workers enter."""
        from .recording.checks import failing

        checks = failing(failed.message)
        if isinstance(checks, RuntimeError):
            return checks
        try:
            again = run.with_failing(checks)
            return checks.error(again.whole(inputs) if again.program.results else [])
        except GridwiseError as error:
            return FailedCheck(f"{failed}\n  {error}", failed.message)

    def record(
        self,
        tree: Tree,
        structures: Sequence[Structure],
        formats: Sequence[torch.memory_format],
        failing: Checks | None = None,
    ) -> Recording:
        """The recording of the function for global inputs of these structures, or of it up to a check that fails."""
        from .recording.checks import Checks
        from .recording.record import record
        from .recording.tracing import InputSpec
        from .self_check import refuse_unknown_torch

        refuse_unknown_torch()
        likes = [
            InputSpec(s.shape, s.dtype, s.device, s.requires_grad, format)
            for s, format in zip(structures, formats, strict=True)
        ]
        checks = failing or Checks(self.options.checks == "skip")
        call = self.call if failing is None else failing.until_error(self.call)
        renew_shardings(self.roots.values(), self.P_x.transport)
        with internal_errors_named(self.says), self.as_written():
            return record(call, self.roots, likes, tree, self.says, checks)

    def _agreed(self, make: Callable[[], Recording]) -> Recording:
        """The recording that all workers make alike; all raise if one cannot make it, or if they differ."""
        recording, error = attempt(make)
        transport, team = self.P_x.transport, self.P_x.team
        vote = Vote()
        failed, succeeded = vote.any(error is not None), vote.any(error is None)
        special: tuple[type[GridwiseError], ...] = (InternalError, UnsupportedError)
        kinds = [(kind, vote.any(isinstance(error, kind))) for kind in special]
        digest = vote.equal(recording.digest if recording else None)
        if is_on() and len(team) > 1:
            vote.count(transport, team, self.says)
            if vote.read(failed):
                kind = next((kind for kind, place in kinds if vote.read(place)), PartitionError)
                reports = gather_lines(transport, team, None if error is None else str(error) or repr(error))
                if len(reports) == 1 and not vote.read(succeeded):
                    raise kind(str(error) or repr(error)) from error and error.__cause__
                raise kind(f"{self.says} cannot be recorded on some workers.", reports)
            if vote.read(digest) is None:
                reports = gather_lines(
                    transport, team, f"the recording has the checksum {recording.digest if recording else 0:x}"
                )
                fix = "build the model alike on all workers; no ranks, times or random numbers in `forward`."
                raise PartitionError(f"{self.says} does not do the same on all workers.", reports, fix)
        elif error is not None:
            raise error
        assert recording is not None
        return recording

    def _is_same(self, text: str) -> bool:
        """Whether all workers have the same text."""
        if not is_on() or len(self.P_x.team) == 1:
            return True
        return all_same(self.P_x.transport, self.P_x.team, self.says, text)

    def _partition(self, placement: Placement, dim: int) -> Partition | None:
        """The partition of an output with `dim` dims; None for a scalar, which every worker holds."""
        if isinstance(placement, Cut):
            return CartesianPartition(self.P_x.transport, placement.layout.grid)
        return CartesianPartition(self.P_x.transport, Grid(self.P_x.ranks, (1,) * dim)) if dim else None


class _Several(torch.nn.Module):
    """Several modules as one, for error messages."""

    def __init__(self, roots: Mapping[str, torch.nn.Module]) -> None:
        super().__init__()
        self._modules.update(roots)
