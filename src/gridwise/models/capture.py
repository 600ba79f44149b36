"""`gridwise.capture`: a training step that is captured as CUDA graphs and then replayed with little work on the host.

calls 1 to `warmup`   run uncaptured, on a side stream
the next call         is captured, and carried out
all later calls       copy their inputs into those of the capture, and replay the graphs

Every call is one training step. The agreements within a step are made once, at the capture; a replay makes a single
one: all workers replay, with inputs of the captured structure.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from ..comm.transports.base import Transport
from ..errors import GridwiseError, PartitionError, UnsupportedError
from ..log import logger
from ..nn.engine.agreement import agree_plan, key_of
from ..nn.engine.autocast import autocasts
from ..nn.engine.graph_pieces import CudaGraphs, Pieces
from ..nn.engine.operator import CallId
from ..partition import Partition, world
from .recording.containers import Tree, constants_in, described, flatten, unflatten

PLAIN, GRAPHS = 1, 2
"""How a step runs: uncaptured, or as CUDA graphs."""


class InputKind(NamedTuple):
    """The shape, dtype and device that an input of a captured step must have."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, x: Tensor) -> InputKind:
        return cls(tuple(x.shape), x.dtype, x.device)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape} on {self.device}"


class CapturedStep:
    """A captured training step, made by `capture`.

    Parameters
    ----------
    *args, **kwargs : those of the step, with the structure of the first call

    Attributes
    ----------
    graphs : number of CUDA graphs in a replay; 0 before the capture, and without CUDA

    Examples
    --------
    >>> doubled = gridwise.capture(lambda x: 2 * x)
    >>> doubled(torch.ones(2)), doubled.graphs
    (tensor([2., 2.]), 0)
    """

    def __init__(self, step: Callable[..., Any], warmup: int, partition: Partition | None, inside: bool) -> None:
        self._step, self._warmup, self._inside = step, warmup, inside
        self._partition = partition or world()
        self._name = f"the captured step {getattr(step, '__qualname__', type(step).__name__)}"
        number = self._partition.transport.ordinal(self._name)
        self._call_id = CallId(key_of(f"{self._name} #{number}"), 0)
        self._calls = 0
        self._structure: tuple[list[InputKind], Tree, bool] | None = None
        self._mode = PLAIN
        self._pieces: Pieces | None = None
        self._graphs: CudaGraphs | None = None
        self._inputs: list[Tensor] = []
        self._outputs: tuple[list[Tensor], Tree] | None = None

    @property
    def graphs(self) -> int:
        return self._pieces.graphs if self._pieces is not None else 0

    def __repr__(self) -> str:
        how = f"{self.graphs} CUDA graphs" if self.graphs else f"{self._calls} calls without a graph"
        return f"<{self._name}: {how}>"

    def __call__(self, *args: object, **kwargs: object) -> Any:
        tensors, tree = flatten((args, kwargs))
        self._agree(tensors, tree)
        if self._mode == PLAIN:
            return self._run(tensors, tree)
        with torch.cuda.device(tensors[0].device):
            if self._pieces is None:
                leaves, form = self._outputs = self._on_side_stream(tensors, tree)
            else:
                assert self._outputs is not None
                leaves, form = self._outputs
                torch._foreach_copy_(self._inputs, tensors)
                self._pieces.replay()
            return unflatten(form, [leaf.clone() for leaf in leaves])

    # Agreement among the workers

    def _agree(self, tensors: list[Tensor], tree: Tree) -> None:
        """Raise on all workers unless all of them make this call, with valid inputs."""
        problem = self._problem_with(tensors, tree)
        transport, team = self._partition.transport, self._partition.team
        call_id = self._call_id.called_again()
        on_cuda = bool(tensors) and all(x.is_cuda for x in tensors)
        mode = self._mode if self._structure is not None else GRAPHS if on_cuda else PLAIN
        if transport.rank in team:
            found = agree_plan(transport, team, self._name, call_id.number, mode, problem)
            if not found:
                raise PartitionError(
                    f"{self._name} has inputs on a CUDA device on some workers of {team}, and not on others.\n"
                    "  fix: bring all inputs to the device, on all workers."
                )
        elif problem is not None:
            raise PartitionError(f"{self._name}: {problem}")
        self._call_id = call_id
        self._calls += 1
        if self._structure is None:
            self._structure, self._mode = self._structure_of(tensors, tree), mode
            if mode == PLAIN:
                logger.info("%s runs as it is, without a graph: its inputs are not on a CUDA device", self._name)
            elif self._inside:
                _need_nccl(transport, self._name)

    def _structure_of(self, tensors: Sequence[Tensor], tree: Tree) -> tuple[list[InputKind], Tree, bool]:
        return [InputKind.of(x) for x in tensors], tree, torch.is_grad_enabled()

    def _problem_with(self, tensors: Sequence[Tensor], tree: Tree) -> str | None:
        if any(x.requires_grad for x in tensors):
            return (
                "takes inputs that need no gradient\n  fix: call requires_grad_() in the step, and return the gradient"
            )
        if autocasts():
            return "is called under autocast\n  fix: enter autocast in the step"
        found, was = self._structure_of(tensors, tree), self._structure
        if was is None or found == was:
            return None
        if found[1] != was[1]:
            difference = f"{described(was[1])}, got {described(found[1])}"
        elif found[2] != was[2]:
            difference = f"autograd {'on' if was[2] else 'off'}, got it {'on' if found[2] else 'off'}"
        else:
            differ = [place for place, (a, b) in enumerate(zip(was[0], found[0], strict=True)) if a != b]
            difference = "; ".join(f"input {place}: {was[0][place]}, got {found[0][place]}" for place in differ)
        return (
            f"was captured for inputs of another structure: {difference}\n"
            "  fix: batches of one size (drop_last=True), or a captured step for each structure"
        )

    # Running

    def _run(self, tensors: Sequence[Tensor], tree: Tree) -> Any:
        """Run the step uncaptured; its outputs are copies, as after a replay."""
        leaves, form = self._outputs_of(unflatten(tree, tensors))
        return unflatten(form, [leaf.detach().clone() for leaf in leaves])

    def _outputs_of(self, called: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[list[Tensor], Tree]:
        args, kwargs = called
        leaves, form = flatten(self._step(*args, **kwargs))
        if held := [value for value in constants_in(form) if value is not None]:
            raise UnsupportedError(
                f"{self._name} returns {held[0]!r}, which a replay would return for ever.\n"
                "  fix: return tensors, and None."
            )
        return leaves, form

    def _on_side_stream(self, tensors: Sequence[Tensor], tree: Tree) -> tuple[list[Tensor], Tree]:
        """Run a warm-up step, or capture the step and carry it out; the outputs."""
        graphs = self._graphs = self._graphs or CudaGraphs(tensors[0].device)
        current = torch.cuda.current_stream()
        graphs.stream.wait_stream(current)
        with torch.cuda.stream(graphs.stream), warnings.catch_warnings():
            # capturable optimisers warn that they run uncaptured; a graph between two movements may be empty
            warnings.filterwarnings("ignore", ".*capturable=True.*")
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            if self._calls <= self._warmup:
                leaves, form = self._outputs_of(unflatten(tree, tensors))
            else:
                leaves, form = self._capture(tensors, tree, graphs)
        current.wait_stream(graphs.stream)
        return [leaf.detach() for leaf in leaves], form

    def _capture(self, tensors: Sequence[Tensor], tree: Tree, graphs: CudaGraphs) -> tuple[list[Tensor], Tree]:
        torch.cuda.synchronize()
        gc.collect()  # memory freed during a capture would disturb it
        torch.cuda.empty_cache()
        self._inputs = [x.clone() for x in tensors]
        self._outputs = None
        pieces = Pieces(tensors[0].device, graphs, breaks=not self._inside)
        torch.cuda.synchronize()
        try:
            made: tuple[list[Tensor], Tree] = pieces.capture(lambda: self._outputs_of(unflatten(tree, self._inputs)))
        except GridwiseError:
            raise
        except RuntimeError as error:
            raise UnsupportedError(
                f"{self._name} cannot be captured as a CUDA graph: {error}\n"
                "  fix: the whole step on the device: no item(), no float() of a tensor, no printing, no data from the host; "
                "optimisers with capturable=True where torch has it."
            ) from error
        self._pieces = pieces
        logger.info("%s was captured: %d graphs", self._name, pieces.graphs)
        return made


def _need_nccl(transport: Transport, name: str) -> None:
    if transport.size > 1 and not transport.carries_cuda:
        raise UnsupportedError(
            f"{name}: movements over {transport.name} cannot be part of a CUDA graph.\n"
            "  fix: leave out `inside`: they are made between graphs then; or nccl, with a device for each worker."
        )


@overload
def capture(
    step: None = None, *, warmup: int = 3, partition: Partition | None = None, inside: bool = False
) -> Callable[[Callable[..., Any]], CapturedStep]: ...


@overload
def capture(
    step: Callable[..., Any], *, warmup: int = 3, partition: Partition | None = None, inside: bool = False
) -> CapturedStep: ...


def capture(
    step: Callable[..., Any] | None = None,
    *,
    warmup: int = 3,
    partition: Partition | None = None,
    inside: bool = False,
) -> Any:
    """A training step that is captured as CUDA graphs in one of its first calls, and replayed in all later ones.

    On one worker the whole step is one graph. On several workers each piece between two movements is a graph, and the
    movements run between the graphs. A step whose inputs are not on a CUDA device runs uncaptured, with the same
    checks.

    Parameters
    ----------
    step : a function of tensors: forward, backward, the optimiser's step and whatever else belongs to a training step
    warmup : how many calls run uncaptured before one is captured; at least 1. They are training steps like all others
    partition : the workers that make the step together; default: all
    inside : make the movements part of a single graph; needs nccl and a device for each worker. Not verified yet

    Returns
    -------
    CapturedStep
        called like `step`. Inputs are copied into those of the capture, and must have the structure of the first call:
        shapes, dtypes, device, containers, and values other than tensors. The outputs are copies, without a gradient.

    Notes
    -----
    A replay does what the step did at the capture. What the host decided or computed then is fixed: branches, the
    model's mode, learning rates that are not tensors. `item()` and other reads from the device cannot be captured;
    optimisers need ``capturable=True`` where torch offers it. Call `optimizer.zero_grad()` in the step. Random keys of
    dropout are drawn anew before each replay: the masks are those of uncaptured steps.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> model = gridwise.nn.DistributedLinear(P_x, 3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> @gridwise.capture
    ... def train(x, target):
    ...     optimizer.zero_grad()
    ...     loss = (model(x) - target).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss
    >>> losses = [train(torch.ones(4, 3), torch.zeros(4, 1)) for _ in range(6)]
    >>> bool(losses[-1] < losses[0])
    True
    """
    if step is None:
        return lambda step: capture(step, warmup=warmup, partition=partition, inside=inside)
    if not callable(step) or warmup < 1:
        raise PartitionError(
            f"capture: `step` (={step!r}) must be a function, and `warmup` (={warmup}) at least 1.\n"
            "  fix: gridwise.capture(step, warmup=3), where step(*tensors) makes one step."
        )
    return CapturedStep(step, warmup, partition, inside)
