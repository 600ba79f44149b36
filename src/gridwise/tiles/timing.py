"""How long a call takes: every operator is run on a part of its tile, here and now, and its time scaled to all tiles.

    a stage    tiles x (its operators on the hulls of a tile + what reading and writing boxes takes)

An operator is measured once for all layers of the same sizes, and on no more than `MOST_FLOPS` and `MOST_BYTES`. Single
figures for a machine would not do: the speed of a convolution depends on its channels, its rows and the kernel that torch
chooses, by a factor of ten.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..costs.machine import find_machine
from ..grid import Box, Shape
from ..memory_sizes import free
from ..operators.on_boxes import Collecting, Local
from ..operators.random.random_stream import RandomStream
from .cone import Stage, cuts_of
from .cuts import slowness
from .execute import made
from .graph import GlobalValue, Operation
from .heap import is_mapped_one_by_one, within
from .schedule import Schedule

MOST_FLOPS, MOST_BYTES = 2e8, 48 << 20
"""Of a part of a tile that is measured."""
PER_STEP, PER_TILE = 15e-6, 150e-6
"""Seconds that an operator and a tile take besides."""
MOVED = 4 << 20
"""Bytes by which reading and writing boxes is measured."""
REPEATS = 3
_measured: dict[Hashable, Any] = {}


def seconds_of(schedule: Schedule, folder: Path | None, device: torch.device) -> list[tuple[float, float]]:
    """The seconds of each stage, forward and backward."""
    store = _Store(folder, device, schedule.stored_peak)
    found = []
    with within(schedule.memory, schedule.peak, device):  # where memory is fresh, it takes longer
        for stage in schedule.stages:
            with_gradients = schedule.backward and stage.requires_grad
            found.append(
                (_stage(stage, device, store, False), _stage(stage, device, store, True) if with_gradients else 0.0)
            )
    return found


def _stage(stage: Stage, device: torch.device, store: _Store, backward: bool) -> float:
    if stage.whole is not None:
        return _whole(stage, stage.whole) * (3 if backward else 1)
    counts = stage.counts_back if backward else stage.counts
    times = 3 if backward else 1  # a cotangent is read or added to as well
    rates: dict[tuple[Operation, float], float] = {}
    moves: dict[GlobalValue, float] = {}
    spent = 0.0
    for box, weight in _kinds(stage.shape, counts):
        hulls = stage.hulls(box)
        todo = [(each, _own(each, hulls)) for each in stage.operations] + [(each, box) for each in stage.collects]
        for operation, own in todo:
            kind = operation, _slowness(operation, own, backward)
            if kind not in rates:
                rates[kind] = _per_element(operation, own, device, backward)
            spent += weight * rates[kind] * max(1, own.volume)
        moved = [(root, box) for root in stage.roots] + [(v, hulls[v]) for v in stage.reads if not v.is_fixed]
        for value, part in moved:
            if value not in moves:
                moves[value] = store.per_byte(value, part)[0 if value in stage.roots else 1]
            spent += weight * times * _bytes(value, part) * moves[value]
        spent += weight * times * (PER_TILE + len(todo) * PER_STEP)
    return spent


def _kinds(shape: Shape, counts: Sequence[int]) -> list[tuple[Box, int]]:
    """Tiles that stand for all others, most of them first: one inside, and those at the borders, which have other halos."""
    lines = []
    for extent, count in zip(shape, counts, strict=True):
        parts = list(pairwise(cuts_of(extent, count)))
        first, inside, last = parts[:1], parts[1:-1], parts[1:][-1:]
        lines.append([(part, 1) for part in (*first, *last)] + [(part, len(inside)) for part in inside[:1]])
    found = [(Box.of_intervals([part for part, _ in each]), prod(n for _, n in each)) for each in product(*lines)]
    return sorted(found, key=lambda pair: -pair[1])


def _slowness(operation: Operation, box: Box, backward: bool) -> float:
    return slowness(operation, dict(zip(operation.inputs, operation.needs(box), strict=True)), backward)


def _own(operation: Operation, hulls: dict[GlobalValue, Box]) -> Box:
    return next(hulls[value] for value in operation.outputs if value in hulls)


def _bytes(value: GlobalValue, box: Box) -> int:
    return box.volume * value.spec.dtype.itemsize


# Operators


def _per_element(operation: Operation, box: Box, device: torch.device, backward: bool) -> float:
    """Seconds of an operator, for each element of its output."""
    part = _part(operation, box, backward)
    if not part.volume and part.start:
        return 0.0
    needs = [need.shape for need in operation.needs(part)]
    dtypes = [(value.spec.dtype, value.requires_grad) for value in operation.inputs]
    kind = operation.name.split(" ")[0]
    how = device, backward, torch.get_num_threads(), is_mapped_one_by_one()
    key = kind, part.shape, *needs, *dtypes, operation.operator.flops, *how
    if key not in _measured:
        _measured[key] = _timed(lambda: _run_once(operation, part, needs, device, backward), device)
    return float(_measured[key]) / max(1, part.volume)


def _part(operation: Operation, box: Box, backward: bool) -> Box:
    """A part of the box that does not take long, of the same shape in the dims that matter for speed."""

    def cost(part: Box) -> tuple[float, int, float]:
        needs = operation.needs(part)
        moved = sum(_bytes(v, need) for v, need in zip(operation.inputs, needs, strict=True))
        return operation.operator.flops * part.volume, moved, _slowness(operation, part, backward)

    flops, moved, slow = cost(box)
    while flops > MOST_FLOPS or moved > MOST_BYTES:
        halves = [half for half in _halves(box) if cost(half)[2] == slow]
        if not halves:
            break
        box = halves[0]
        flops, moved, _ = cost(box)
    return box


def _halves(box: Box) -> list[Box]:
    """The box with one dim halved: dims of space first, then the last one, in which rows are long, then the others."""
    n = len(box.shape)
    inner = sorted(range(2, n - 1), key=lambda d: -box.shape[d])
    order = [*inner, *(d for d in (n - 1, 0, 1) if d < n)] if n > 3 else [*range(n)]
    found = []
    for d in dict.fromkeys(order):
        if box.shape[d] > 1:
            stop = box.start[d] + box.shape[d] // 2
            found.append(Box(box.start, (*box.stop[:d], stop, *box.stop[d + 1 :])))
    return found


def _run_once(
    operation: Operation, box: Box, needs: Sequence[Shape], device: torch.device, backward: bool
) -> Callable[[], Any]:
    """What computes an operator on a box, with gradients or without."""
    given = [_filled(v, shape, device, backward) for v, shape in zip(operation.inputs, needs, strict=True)]
    operator = operation.operator
    if isinstance(operator, Collecting):
        return lambda: operator.add(None, box, *(x.detach() for x in given))
    assert isinstance(operator, Local)
    before: tuple[Any, ...] = (RandomStream(0).at(operation.draw), box) if operation.draw else (box,)

    def run() -> None:
        with torch.set_grad_enabled(backward), operation.casting():
            made = operator.run(*before, *given)
        if backward:
            ends = [y for y in (made if isinstance(made, list | tuple) else (made,)) if y.requires_grad]
            starts = [x for x in given if x.requires_grad]
            if ends and starts:
                torch.autograd.grad(ends, starts, [torch.ones_like(y) for y in ends], allow_unused=True)

    return run


def _filled(value: GlobalValue, shape: Shape, device: torch.device, backward: bool) -> Tensor:
    dtype = value.spec.dtype
    if dtype.is_floating_point or dtype.is_complex:
        wanted = backward and value.requires_grad
        generator = torch.Generator(device).manual_seed(0)  # the user's is left alone
        x = torch.rand(shape, generator=generator, device=device)  # a pooling takes longer where it cannot guess
        return x.to(dtype).requires_grad_(wanted)
    return torch.zeros(shape, dtype=dtype, device=device)


def _whole(stage: Stage, operation: Operation) -> float:
    """Seconds of an operator that is computed whole, from the figures of this machine."""
    machine = find_machine(None)
    moved = sum(value.nbytes for value in (*stage.reads, *stage.roots))
    return (
        operation.flops / machine.rate("matmul", "float32") + moved / machine.memory_bandwidth + machine.call_overhead
    )


def _timed(make: Callable[[], Callable[[], Any]], device: torch.device) -> float:
    """The shortest time of a few calls; the first is not counted."""
    call, others = make(), torch.empty(MOST_BYTES // 8, device=device)
    times = []
    for _ in range(REPEATS):
        others.zero_()  # what a tile holds takes more than the caches
        times.append(_spent(call, device))
    return min(times[1:])


def _spent(call: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if alone else time.perf_counter  # what other programs take does not count
    began = clock()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - began


# The store


class _Store:
    """How long it takes to move a byte between tiles and what is stored."""

    def __init__(self, folder: Path | None, device: torch.device, stored: int) -> None:
        self.folder, self.device = folder, device
        self.beyond = folder is not None and stored > free(torch.device("cpu")) // 2
        """Whether the system has to write to the disk what it cannot keep in memory."""

    def per_byte(self, value: GlobalValue, box: Box) -> tuple[float, float]:
        """Seconds to write and to read a byte of such boxes."""
        shape, part = list(value.shape), list(box.shape)
        size = value.spec.dtype.itemsize
        for d in range(len(shape)):  # how rows lie in the file matters most, so the first dims are the first to be cut
            while shape[d] > 1 and (prod(shape) * size > 8 * MOVED or prod(part) * size > MOVED):
                shape[d] = -(-shape[d] // 2)
                part[d] = min(part[d], shape[d])
        key = "move", self.folder, *shape, *part, value.spec.dtype, self.device, is_mapped_one_by_one()
        if key not in _measured:
            _measured[key] = _moving(self.folder, tuple(shape), Box.of_shape(tuple(part)), value, self.device)
        write, read = _measured[key]
        disk = self._disk() if self.beyond else 0.0
        return write + disk, read + disk

    def _disk(self) -> float:
        assert self.folder is not None
        key = "disk", self.folder
        if key not in _measured:
            _measured[key] = _writing(self.folder)
        return float(_measured[key])


def _moving(
    folder: Path | None, shape: Shape, box: Box, value: GlobalValue, device: torch.device
) -> tuple[float, float]:
    """Seconds per byte of writing a box and of reading it."""
    writes, reads = [], []
    x = torch.ones(box.shape, dtype=value.spec.dtype, device=device)
    for _ in range(REPEATS):  # into new arrays, whose memory comes from the system
        array = made(shape, x.dtype, folder, device)
        writes.append(sum(_spent(partial(array.write, box, x), device) for _ in range(2)) / 2)  # pages are new once
        reads.append(_spent(lambda: array.read(box, device).contiguous(), device))  # noqa: B023
        array.release()
    return min(writes) / max(1, x.nbytes), min(reads) / max(1, x.nbytes)


def _writing(folder: Path) -> float:
    """Seconds per byte of writing to the disk itself."""
    import tempfile

    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        for _ in range(8):
            file.write(bytes(8 << 20))
        os.fsync(file.fileno())
        return (time.perf_counter() - began) / (64 << 20)
