"""`plan`: one training step of a model on a grid, counted for every worker, without a process and without memory.

    once                 record the model, with tensors that have no numbers
    for each worker      distribute it on the counting transport
                         run forward, loss and backward: the code that real workers run
    in the ledger        what each of them would send, to whom, for which layer

The first step of a model is counted. It moves what every later one moves; its agreement, which later steps leave out,
is kept apart.
"""

from __future__ import annotations

import copy
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..comm.transports.counting import Ledger
from ..errors import PartitionError
from ..grid import Grid, Layout
from ..models import DistributedModel, distribute
from ..models.model import runner_of
from ..models.recording import Recording
from ..models.recording.containers import flatten
from ..partition import Partition, world
from .report import BACKWARD, FORWARD, Plan, Worker, layers_of

Loss = Callable[[Partition, Tensor], Tensor]
MANY = 256
"""Workers from which only typical ones are run."""


def plan(
    model: torch.nn.Module,
    grid: Sequence[int],
    input_shape: Sequence[int],
    *,
    loss: Loss | None = None,
    dtype: torch.dtype = torch.float32,
    workers: Iterable[int] | None = None,
) -> Plan:
    """What a training step of `model` on a grid of workers takes and sends: memory, bytes, messages, balance.

    Nothing is started, allocated or computed. The model may be a deferred one, and the grid have thousands of workers.

    Parameters
    ----------
    model : an ordinary torch model, as for `gridwise.distribute`; it is not changed
    grid : the shape of the grid of workers, one axis for each dim of the input
    input_shape : of the global input
    loss : ``loss(P_y, y)`` makes the loss of the output `y` on `P_y`; by default backward starts from the output
    dtype : of the input
    workers : which workers to run, by their ranks. By default all of them up to 256; of more, those at the first, second,
        middle and last places along each axis, and where blocks become shorter

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU())
    >>> planned = gridwise.plan(model, (1, 1, 32, 32), (1, 3, 4096, 4096), workers=[0, 33])
    >>> [(worker.messages, worker.sent) for worker in planned.workers]
    [(3, 4890), (8, 7998)]
    """
    shape, extents = _numbers("input_shape", input_shape, 0), _numbers("grid", grid, 1)
    asked = None if workers is None else _numbers("workers", workers, 0)
    if len(extents) != len(shape):
        raise PartitionError(f"plan: `grid` (={extents}) needs an axis for each dim of `input_shape` (={shape}).")
    if asked == ():
        raise PartitionError("plan: `workers` names no worker to run.\n  fix: leave it out, or name one at least.")
    if not isinstance(model, torch.nn.Module):
        raise PartitionError(f"plan: `model` (={model!r}) is no torch.nn.Module.\n  fix: make it the `forward` of one.")
    if not isinstance(dtype, torch.dtype):
        raise PartitionError(f"plan: `dtype` (={dtype!r}) is no torch.dtype.")
    twin, found, recordings = without_numbers(model), list[Worker](), list[Recording]()

    def step(P_world: Partition) -> None:
        P_x = P_world.create_cartesian_topology_partition(extents)
        with torch.device("meta"):  # what the model's code makes has no numbers either
            found.append(_step(twin, P_x, shape, dtype, loss, recordings))

    size = math.prod(extents)
    ranks = range(size) if asked is None else asked
    weights = typical(extents, shape) if asked is None and size > MANY else dict.fromkeys(ranks, 1)
    ledger = count(step, size, weights)
    layers = layers_of(ledger, weights)
    return Plan(type(model).__name__, extents, shape, tuple(found), layers, ledger, tuple(weights.values()))


def count(program: Callable[[Partition], Any], size: int, workers: Iterable[int] | None = None) -> Ledger:
    """The ledger of a world of `size` in which each pretended worker has called ``program(P_world)``, one after the
    other.

    Where a worker asks for what only others hold, the source of a broadcast say, let those run first: `workers` is also
    the order. Give the program's tensors the device "meta", and the ledger the layouts of what its layers get
    (``P_world.transport.ledger``, see `gridwise.comm.transports.counting`).

    Parameters
    ----------
    program : called once for each worker, with the world that it pretends to be in
    size : how many workers
    workers : those to run, in this order; default: all

    Examples
    --------
    >>> def program(P_world):
    ...     P_x = P_world.create_cartesian_topology_partition([1, 64])
    ...     P_world.transport.ledger.expected = (16, 6400)
    ...     gridwise.nn.HaloExchange(P_x, [(0, 0), (1, 1)])(torch.empty(16, 100, device="meta"))
    >>> ledger = gridwise.planning.count(program, 64)
    >>> ledger.bytes_sent(0, "message"), ledger.bytes_sent(1, "message")
    (64, 128)
    """
    ledger = Ledger(size)
    for rank in range(size) if workers is None else workers:
        transport = ledger.worker(rank)
        with torch.random.fork_rng(devices=[]):  # all workers start from the same state
            torch.default_generator.manual_seed(0)
            program(world(transport))
        transport.close()
    return ledger


def typical(grid: tuple[int, ...], shape: tuple[int, ...]) -> dict[int, int]:
    """Workers at the ends, next to the ends and in the middle of each axis, and on both sides of where blocks shrink;
    and how many workers each stands for, those that are nearest to it."""
    places = []
    for extent, rows in zip(grid, shape, strict=True):
        chosen = {0, 1, extent // 2, extent - 2, extent - 1, rows % extent - 1, rows % extent}
        known = sorted(chosen & set(range(extent)))
        inner = [place for place in known if 0 < place < extent - 1] or known
        stood_for = Counter(i if i in known else min(inner, key=lambda place: abs(place - i)) for i in range(extent))
        places.append(sorted(stood_for.items()))
    whole = Grid(tuple(range(math.prod(grid))), grid)
    return {whole.rank_at([i for i, _ in line]): math.prod(n for _, n in line) for line in product(*places)}


def _numbers(name: str, values: Any, least: int) -> tuple[int, ...]:
    """Whole numbers, as the user gave them: a fraction is no extent and no worker."""
    try:
        found = tuple(map(operator.index, values))
    except TypeError:
        found = None
    if found is None or min(found, default=least) < least:
        raise PartitionError(
            f"plan: `{name}` (={values!r}) must be a sequence of whole numbers, none less than {least}."
        )
    return found


def without_numbers(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the model on the meta device, made without copying a number; of a deferred model too."""
    memo: dict[int, Any] = {}
    plain = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    for tensor in [*model.parameters(), *model.buffers(), *plain]:
        twin = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
    return copy.deepcopy(model, memo)


def _step(
    model: torch.nn.Module,
    P_x: Partition,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    loss: Loss | None,
    recordings: list[Recording],
) -> Worker:
    transport: Any = P_x.transport
    ledger, rank = transport.ledger, transport.rank
    placed = distribute(model, P_x)
    _record_once(placed, recordings)
    ledger.entries[rank].clear()  # the construction is no part of a step
    x = torch.empty(Layout.balanced(P_x.grid, shape).block(rank).shape, dtype=dtype)
    ledger.expect(shape)
    ledger.phase = FORWARD
    kept = _Kept([*placed.parameters(), *placed.buffers(), x])
    with torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda tensor: tensor):
        y = placed(x)
        if loss is not None:
            _expect_outputs(ledger, placed, recordings[0])
            y = loss(placed.P_y, y)
            if not isinstance(y, Tensor):
                raise PartitionError(
                    f"plan: `loss` must return a tensor, from which backward starts; it returned {y!r}."
                )
    ledger.phase = BACKWARD
    ends = [tensor for tensor in flatten(y)[0] if tensor.requires_grad]
    if ends:
        torch.autograd.backward(ends, [torch.empty_like(tensor) for tensor in ends])
    parameters = list(placed.parameters())
    return Worker.of(
        rank,
        P_x.index or (),
        ledger.entries[rank],
        parameters=sum(t.nbytes for t in (*parameters, *placed.buffers())),
        gradients=sum(p.nbytes for p in parameters if p.requires_grad),
        activations=kept.bytes,
    )


def _record_once(placed: DistributedModel, recordings: list[Recording]) -> None:
    """Let the first of the pretended workers record, and the others take what it has recorded."""
    runner: Any = runner_of(placed)
    record = runner.record

    def recorded(*args: Any) -> Recording:
        if not recordings:
            recordings.append(record(*args))
        return recordings[0]

    runner.record = recorded


def _expect_outputs(ledger: Ledger, model: DistributedModel, recording: Recording) -> None:
    """The shapes that a loss asks about; of several outputs any, in any order, which their blocks tell apart."""
    (output,) = (node for node in recording.module.graph.nodes if node.op == "output")
    shapes = [tuple(leaf.meta["val"].shape) for leaf in output.args[0]]
    if len(shapes) == 1:
        ledger.expect(shapes[0])
        return
    partitions = flatten(model.P_y, lambda part: isinstance(part, Partition))[0]
    ledger.expect()
    ledger.layouts = [Layout.balanced(P.grid, shape) for P, shape in product(partitions, shapes) if P.dim == len(shape)]


class _Kept:
    """The memory that autograd keeps for backward, each piece once, and none that the model or the user has anyway."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}
        self._alive: list[Tensor] = []
        self.bytes = 0

    def keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self._alive.append(tensor)  # as long as it lives its address is its own
            self.bytes += storage.nbytes()
        return tensor
