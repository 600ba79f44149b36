"""`plan`: one training step of a model on a grid, counted for every worker, without starting or allocating anything.

    once                 record the model, on meta tensors
    for each role        distribute it on the counting transport
                         run forward, loss, backward and optimiser: the code that real workers run
    in the ledger        what each of them would send, to whom, for which layer

The first step of a model is counted. It moves what every later one moves; its agreement, which later steps skip, is kept
apart. Given a number of workers, or what memory each has, instead of a grid, `search` tries the possible grids.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, overload

import torch

from ..comm.transports.counting import Entry, Ledger
from ..costs.machine import Machine, find_machine
from ..errors import PartitionError
from ..memory_sizes import number_of_bytes
from ..models.distribute import ParametersOption
from ..partition import Partition, world
from .layer_names import layer_of
from .one_step import Loss, Optimizer, PlannedStep, StepRecord, meta_copy, step
from .report import LayerTraffic, Plan, busiest
from .roles import Roles, find_roles
from .search import Ranking, least_workers, search
from .times import step_time

Result = TypeVar("Result")
RUN_ALL_UP_TO = 16
"""Up to this many workers, all of them are run."""


@overload
def plan(
    model: torch.nn.Module,
    grid: Sequence[int],
    input_shape: Sequence[int],
    *,
    workers: Iterable[int] | None = ...,
    loss: Loss | None = ...,
    dtype: torch.dtype = ...,
    optimizer: Optimizer | None = ...,
    parameters: ParametersOption = ...,
    machine: Machine | str | Path | None = ...,
) -> Plan: ...


@overload
def plan(
    model: torch.nn.Module,
    grid: None = ...,
    input_shape: Sequence[int] = ...,
    *,
    workers: int | None = ...,
    memory: str | int | None = ...,
    loss: Loss | None = ...,
    dtype: torch.dtype = ...,
    optimizer: Optimizer | None = ...,
    parameters: ParametersOption = ...,
    machine: Machine | str | Path | None = ...,
) -> Ranking: ...


def plan(
    model: torch.nn.Module,
    grid: Sequence[int] | None = None,
    input_shape: Sequence[int] = (),
    *,
    workers: Iterable[int] | int | None = None,
    memory: str | int | None = None,
    loss: Loss | None = None,
    dtype: torch.dtype = torch.float32,
    optimizer: Optimizer | None = None,
    parameters: ParametersOption = "whole",
    machine: Machine | str | Path | None = None,
) -> Plan | Ranking:
    """What a training step of `model` on a grid of workers costs: memory, time, bytes, messages, balance.

    Nothing is started, allocated or computed. The model may be deferred, and the grid may have thousands of workers.

    Parameters
    ----------
    model : an ordinary torch model, as for `gridwise.distribute`; it is not changed
    grid : the shape of the grid of workers, one axis for each dim of the input; if left out, grids are searched
    input_shape : of the global input
    workers : with a grid, the ranks of the workers to run, by default one of each role; without a grid, the number of
        workers, by default the least that have enough memory
    memory : without a grid, the memory of each worker, in bytes or as in "40GiB"; by default that of the machine
    loss : ``loss(P_y, y)`` computes the loss from the output `y` on `P_y`; by default backward starts from the output
    dtype : of the input
    optimizer : makes an optimiser from the parameters, as ``torch.optim.AdamW`` does; its states count as memory
    parameters : "whole" or "cut", as for `gridwise.distribute`
    machine : how fast the workers are: the name of a shipped machine, a TOML file (`gridwise doctor --calibrate` writes
        one), or a `Machine`; by default the one that was measured here, if any

    Returns
    -------
    Plan : of the grid
    Ranking : of the grids that were tried, the fastest that fits first, if `grid` is left out

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU())
    >>> planned = gridwise.plan(model, (1, 1, 32, 32), (1, 3, 4096, 4096), workers=[0, 33])
    >>> [(worker.messages, worker.sent) for worker in planned.workers]
    [(3, 4890), (8, 7998)]
    >>> ranking = gridwise.plan(model, workers=4, input_shape=(1, 3, 4096, 4096), machine="nvidia-a100")
    >>> ranking.best.grid
    (1, 1, 4, 1)
    """
    shape = _numbers("input_shape", input_shape, 0)
    if not isinstance(model, torch.nn.Module):
        raise PartitionError(f"plan: `model` (={model!r}) is no torch.nn.Module.\n  fix: make it the `forward` of one.")
    if not isinstance(dtype, torch.dtype):
        raise PartitionError(f"plan: `dtype` (={dtype!r}) is no torch.dtype.")
    known = find_machine(machine)
    task = PlannedStep(meta_copy(model), shape, known, dtype, loss, optimizer, parameters)
    if grid is None and (isinstance(workers, int) or (workers is None and memory is not None)):
        limit = known.memory if memory is None else number_of_bytes(memory)
        if workers is None:
            return least_workers(task, limit, plan_grid)
        return search(task, _numbers("workers", [workers], 1)[0], limit, plan_grid)
    extents = _numbers("grid", grid, 1)
    if len(extents) != len(shape):
        raise PartitionError(f"plan: `grid` (={extents}) needs an axis for each dim of `input_shape` (={shape}).")
    if memory is not None:
        raise PartitionError("plan: `memory` is for a search.\n  fix: leave `grid` out, and say how many `workers`.")
    asked = None if workers is None else _numbers("workers", workers, 0)
    if asked == ():
        raise PartitionError("plan: `workers` names no worker to run.\n  fix: leave it out, or name one at least.")
    return plan_grid(task, extents, asked)


def plan_grid(task: PlannedStep, grid: tuple[int, ...], workers: Sequence[int] | None) -> Plan:
    """The plan of a grid, from these workers only, or from one of each role."""
    size, on_cpu = math.prod(grid), task.machine.device == "cpu"
    ledger = Ledger(size, workers_per_node=task.machine.workers_per_node if on_cpu else 1)  # nccl sums in place
    records: dict[int, StepRecord] = {}

    def on_grid(P_world: Partition) -> StepRecord:
        with torch.device("meta"):  # for tensors that the model's own code makes
            return step(task, P_world.create_cartesian_topology_partition(grid))

    def run(rank: int) -> tuple[StepRecord, Sequence[Entry]]:
        if rank not in records:
            records[rank] = _run_as(rank, ledger, on_grid)
        return records[rank], ledger.entries[rank]

    roles: Roles | None = None
    if workers is None and size > RUN_ALL_UP_TO:
        if task.parameters == "cut":  # blocks of parameters differ between workers, but hardly in what they cost
            task = replace(task, parameters="whole")
            roles = replace(find_roles(grid, run, task.shape), exact=False)
            task = replace(task, parameters="cut")
            records.clear()
            ledger.entries.clear()
        else:
            roles = find_roles(grid, run, task.shape)
    weights = roles.weights if roles else dict.fromkeys(range(size) if workers is None else workers, 1)
    for rank in weights:
        run(rank)
    for rank in records.keys() - weights.keys():
        ledger.entries.pop(rank)
    volumes = busiest(ledger, weights, lambda entry: layer_of(entry.what))
    chosen = [records[rank] for rank in weights]
    return Plan(
        type(task.model).__name__,
        grid,
        task.shape,
        tuple(record.worker for record in chosen),
        tuple(LayerTraffic(name, *sent) for name, sent in volumes.items()),
        ledger,
        tuple(weights.values()),
        roles,
        tuple(chosen),
        step_time(chosen, tuple(weights.values()), ledger, task.machine),
    )


def count(program: Callable[[Partition], object], size: int, workers: Iterable[int] | None = None) -> Ledger:
    """The ledger of a world of `size` in which pretended workers have called ``program(P_world)``, one after the other.

    Where a worker needs what only others hold, such as the source of a broadcast, run those first: `workers` is also the
    order. Create the program's tensors on the device "meta", and tell the ledger the layouts of its layers' inputs
    (``P_world.transport.ledger``, see `gridwise.comm.transports.counting`).

    Parameters
    ----------
    program : called once for each worker, with its pretended world
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
        _run_as(rank, ledger, program)
    return ledger


def _run_as(rank: int, ledger: Ledger, program: Callable[[Partition], Result]) -> Result:
    transport = ledger.worker(rank)
    with torch.random.fork_rng(devices=[]):  # all workers start from the same state
        torch.default_generator.manual_seed(0)
        result = program(world(transport))
    transport.close()
    return result


def _numbers(name: str, values: object, least: int) -> tuple[int, ...]:
    """The user's values as whole numbers, none below `least`; fractions are refused."""
    try:
        found = tuple(map(operator.index, values))  # type: ignore[call-overload]
    except TypeError:
        found = None
    if found is None or min(found, default=least) < least:
        raise PartitionError(
            f"plan: `{name}` (={values!r}) must be a sequence of whole numbers, none less than {least}."
        )
    return found
