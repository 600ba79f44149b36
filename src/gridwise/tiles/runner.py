"""A function that runs by tiles: recorded and scheduled once for each structure of its inputs, then run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.sources import Source, as_source
from ..errors import PartitionError, UnsupportedError
from ..models.program import FailedCheck
from ..models.recording.containers import Tree, flatten
from ..models.recording.recording import Recording
from ..models.recording.state import Holding, Snapshot, modules_of, tensors_of
from ..models.roots import constants_of
from ..models.runner import State, quick_mode
from ..nn.engine.grid_random import sequential
from ..operators.random.random_stream import RandomStream
from ..progress import ProgressBar
from .arrays import FromSource, InMemory, StoredArray
from .autograd_node import DifferentiatedCall, TiledCall, tensor_in
from .differentiate import DifferentiableExecution
from .execute import Store, in_memory
from .graph import GlobalValue, OperatorGraph
from .limits import Limits
from .schedule import Schedule
from .targets import ReadableTarget, ToTarget, completed, targets_for

if TYPE_CHECKING:
    from ..models.recording.checks import Checks

KEPT = 8
"""How many schedules are kept, for inputs of different structures."""


class Spec(NamedTuple):
    """The structure of an input."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    format: torch.memory_format


@dataclass
class Scheduled:
    """How a call with inputs of one structure runs."""

    recording: Recording
    graph: OperatorGraph
    schedule: Schedule
    folder: Path | None
    """Where arrays between stages lie; None: in memory."""
    holdings: dict[str, Holding]


class TiledRunner:
    """Runs a function of tensors by tiles."""

    def __init__(
        self,
        says: str,
        call: Callable[..., Any],
        roots: Mapping[str, torch.nn.Module],
        limits: Limits,
        progress: bool | None,
        overwrite: bool = False,
    ) -> None:
        self.says, self.call, self.roots, self.limits, self.progress = says, call, dict(roots), limits, progress
        self.overwrite = overwrite
        self._states: list[State] = []
        self._count = 0
        self._kept: dict[Hashable, Scheduled] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any = None) -> Any:
        leaves, tree = flatten((args, dict(kwargs)), is_array)
        if not leaves:
            raise PartitionError(
                f"{self.says}: no tensor was given.\n  fix: give tensors, or arrays that can be sliced."
            )
        if sequential.get() is not None:
            raise UnsupportedError(f"{self.says}: a tile draws its own random numbers, not all of torch's.")
        device = self.device(leaves)
        arrays = [opened(leaf) for leaf in leaves]
        with nullcontext() if out is None else torch.no_grad():
            found, arrays = self.found_for(arrays, tree)
            try:
                return self._run(found, arrays, device, out)
            except FailedCheck as failed:
                raise self._error_of(failed.message, arrays, tree, device) from None

    def _error_of(self, message: str, arrays: list[Tensor | Source], tree: Tree, device: torch.device) -> BaseException:
        """What the model raises where one of its checks on values fails."""
        from ..models.recording.checks import failing

        checks = failing(message)
        if isinstance(checks, RuntimeError):
            return checks
        found = self._scheduled(tuple(self._spec(x, device) for x in arrays), tree, device, checks)
        return checks.error(self._run(found, arrays, device, None) if found.graph.outputs else [])

    def device(self, leaves: Sequence[Any]) -> torch.device:
        """Where tiles are computed: where the parameters are, or else the first tensor."""
        if self.limits.device is not None:
            return self.limits.device
        held = (x for root in self.roots.values() for x in (*root.parameters(), *root.buffers()))
        found = next((x.device for x in held), None)
        return found or next((x.device for x in leaves if isinstance(x, Tensor) and not x.is_meta), torch.device("cpu"))

    # Recording and scheduling

    def schedule_for(self, leaves: Sequence[Any], tree: Tree) -> Scheduled:
        """How a call with these tensors runs, known or new."""
        device = self.device(leaves)
        specs = tuple(self._spec(leaf, device) for leaf in leaves)
        state = self._state()
        key = specs, tree, state.number, quick_mode(state), constants_of(self.call), device
        if key not in self._kept:
            found = self._scheduled(specs, tree, device)
            if len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            state = self._state()  # in which recording has left the modules
            state.now_reads(found.recording.reads)
            key = specs, tree, state.number, quick_mode(state), constants_of(self.call), device
            self._kept[key] = found
        return self._kept[key]

    def found_for(self, arrays: list[Tensor | Source], tree: Tree) -> tuple[Scheduled, list[Tensor | Source]]:
        """The schedule; files with fewer dims than the model takes get leading dims of extent 1."""
        try:
            return self.schedule_for(arrays, tree), arrays
        except PartitionError:
            most = max((len(a.shape) for a in arrays if not isinstance(a, Tensor)), default=9)
            for lacking in range(1, 6 - most):
                longer: list[Tensor | Source] = [a if isinstance(a, Tensor) else Longer(a, lacking) for a in arrays]
                try:
                    return self.schedule_for(longer, tree), longer
                except PartitionError:
                    continue
            raise

    def _spec(self, leaf: Any, device: torch.device) -> Spec:
        if isinstance(leaf, Tensor):
            format = torch.contiguous_format
            if leaf.dim() in (4, 5) and not leaf.is_contiguous():
                last = torch.channels_last if leaf.dim() == 4 else torch.channels_last_3d
                format = last if leaf.is_contiguous(memory_format=last) else format
            return Spec(tuple(leaf.shape), leaf.dtype, device, leaf.requires_grad, format)
        return Spec(tuple(leaf.shape), self._dtype_of(leaf), device, False, torch.contiguous_format)

    def _dtype_of(self, source: Source) -> torch.dtype:
        """That of the parameters, unless the numbers are integers for an embedding, or there are no parameters."""
        own = torch.from_numpy(np.empty(0, source.dtype)).dtype
        held = (p.dtype for root in self.roots.values() for p in root.parameters() if p.is_floating_point())
        return next(held, own)

    def _state(self) -> State:
        for state in reversed(self._states):
            if state.snapshot.holds():
                return state
        self._count += 1
        self._states = [*self._states[1 - KEPT :], State(self._count, Snapshot(modules_of(self.roots)))]
        return self._states[-1]

    def _scheduled(
        self, specs: Sequence[Spec], tree: Tree, device: torch.device, failing: Checks | None = None
    ) -> Scheduled:
        from ..models.recording.record import record  # imports torch's tracer, which takes seconds
        from ..models.recording.tracing import InputSpec
        from .lowering import lower

        likes = [InputSpec(s.shape, s.dtype, s.device, s.requires_grad, s.format) for s in specs]
        call = self.call if failing is None else failing.until_error(self.call)
        recording = record(call, self.roots, likes, tree, self.says, failing)
        graph = lower(recording, self.says)
        backward = torch.is_grad_enabled() and any(value.requires_grad for value in graph.outputs)
        holdings = {holding.name: holding for holding in tensors_of(modules_of(self.roots))}
        schedule, folder = self.limits.scheduled(graph, backward, device)
        return Scheduled(recording, graph, schedule, folder, holdings)

    # Running

    def _run(self, found: Scheduled, given: Sequence[Tensor | Source], device: torch.device, out: Any) -> Any:
        graph = found.graph
        tensors = {value: self._held(found, value) for value in graph.fixed}
        for place, value in graph.inputs.items():
            x = given[place]
            if isinstance(x, Tensor):
                tensors[value] = x
        arrays: dict[GlobalValue, StoredArray] = {value: in_memory(x.detach(), device) for value, x in tensors.items()}
        for place, value in graph.inputs.items():
            if value not in arrays:
                source = given[place]
                assert isinstance(source, Source)
                arrays[value] = FromSource(source, value.shape, value.spec.dtype)
        computed = list(dict.fromkeys(value for value in graph.outputs if value.by is not None))
        lacking = min((x.lacking for x in given if isinstance(x, Longer)), default=0)
        targets = targets_for(self.says, found.schedule, out, lacking, self.overwrite)
        home = next((x.device for x in given if isinstance(x, Tensor)), torch.device("cpu"))
        store = Store.within(found.schedule.memory, device, found.folder)
        for value in computed:
            arrays[value] = self._array_for(found, value, targets.get(value), home, store)
        keeps = found.schedule.backward and out is None and torch.is_grad_enabled()
        stream = RandomStream(_key() if graph.draws else 0)
        run = DifferentiableExecution(found.schedule, store, arrays, stream, keeps)

        def forward() -> None:
            with completed(targets), self._shown(run, self.says, found.schedule.tiles):
                run.forward()
                self._check(found, run)
            self._write(found, run)

        def backward(given: Mapping[GlobalValue, Tensor]) -> list[Tensor | None]:
            with self._shown(run, f"backward of {self.says}", found.schedule.tiles_back):
                return run.backward(given, starts)

        starts = [value for value in tensors if tensors[value].requires_grad]
        if keeps:
            call = DifferentiatedCall(self.says, run, forward, backward, computed, starts)
            made = TiledCall.apply(call, *(tensors[value] for value in starts))
            results = dict(zip(computed, made, strict=True))
        else:
            forward()
            results = {value: tensor_in(run.arrays[value]) for value in computed}
        flat = [
            targets[value].target if value in targets
            else results[value] if value.by is not None
            else _source_result(tensors, given, value)
            for value in graph.outputs
        ]  # fmt: skip
        return out if out is not None else found.recording.outputs(flat)

    @contextmanager
    def _shown(self, run: DifferentiableExecution, says: str, tiles: int) -> Iterator[None]:
        """Show a bar while tiles run; an error frees what is stored at once, though its traceback may be kept."""
        bar = ProgressBar(says, tiles, self.progress, patience=1.0, stays=False)
        run.progress = bar.report
        try:
            yield
        except BaseException:
            for array in run.arrays.values():
                array.release()
            raise
        finally:
            run.progress = None
            bar.close()

    def _held(self, found: Scheduled, value: GlobalValue) -> Tensor:
        """The tensor of a parameter, a buffer or a constant."""
        source = value.source
        assert source is not None
        holding = found.holdings.get(source.name)
        if source.kind == "constant" or holding is None:
            return found.recording.constants[source.name]
        stored, key = holding.places[0]
        return stored[key]

    def _array_for(
        self, found: Scheduled, value: GlobalValue, target: ToTarget | None, home: torch.device, store: Store
    ) -> StoredArray:
        if target is None:
            return in_memory(torch.empty(value.shape, dtype=value.spec.dtype, device=home), store.device)
        is_read = any(value in stage.reads for stage in found.schedule.stages)
        return ReadableTarget(store.new(value), target) if is_read else target

    def _check(self, found: Scheduled, run: DifferentiableExecution) -> None:
        """Raise if a check on values does not hold."""
        for value, line, message in found.graph.checks:
            array = run.arrays.get(value) or InMemory(self._held(found, value))
            if not bool(array.read(value.box, run.store.device)):
                raise FailedCheck(f"{self.says}: a check on values does not hold:  {line}", message)

    def _write(self, found: Scheduled, run: DifferentiableExecution) -> None:
        """Change the buffers that the model changes, once."""
        with torch.no_grad():
            for value, new in found.graph.writes:
                x = run.arrays[new].read(new.box, run.store.device)
                self._held(found, value).copy_(x)


class Longer(Source):
    """An array with leading dims of extent 1 in front of its own."""

    def __init__(self, source: Source, lacking: int) -> None:
        self.label, self.dtype, self.own, self.lacking = source.label, source.dtype, source, lacking
        self.shape = (1,) * lacking + tuple(source.shape)

    def _read(self, slices: tuple[slice, ...], out: np.ndarray) -> None:
        self.own.read(slices[self.lacking :], out.reshape(out.shape[self.lacking :]))


def is_array(value: object) -> bool:
    """Whether a value is a tensor, or an array or file of which boxes can be read."""
    if isinstance(value, Tensor | np.ndarray | Source | Path):
        return True
    library = type(value).__module__.partition(".")[0]
    return library in ("h5py", "zarr", "nibabel") and all(hasattr(value, name) for name in ("shape", "dtype"))


def opened(leaf: Any) -> Tensor | Source:
    """What a user gives as an input, with files opened."""
    return leaf if isinstance(leaf, Tensor) else as_source(leaf)


def _key() -> int:
    """A number from torch's generator, as workers draw one for each call of a model."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


def _source_result(tensors: Mapping[GlobalValue, Tensor], given: Sequence[Any], value: GlobalValue) -> Any:
    """An output that is an input, or a parameter, itself."""
    assert value.source is not None
    return tensors[value] if value in tensors else given[int(value.source.name)]
