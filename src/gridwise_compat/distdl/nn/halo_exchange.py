"""DistDL's halo exchange: the block is padded with room for its halos, which are filled in place.

forward  ghost rows = the rows of their owners; ghost rows without an owner stay as they were
adjoint  the cotangents of ghost rows are sent to the owners of the rows and added there

The halo width along a dim may differ between workers with different indices along it. Halos may be wider than a
neighbour's block, unlike DistDL's. Along periodic axes of the partition the first and the last worker are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gridwise.errors import PartitionError
from gridwise.grid import Interval, Layout, Needs, route, whole_numbers
from gridwise.nn.engine.agreement import agree_layout
from gridwise.nn.engine.carrier import Move
from gridwise.nn.primitives.base import Primitive
from gridwise.partition import Partition

from ..backends.mpi.buffer import check_manager, hold_buffers
from ..backends.mpi.communicator import Communicator
from ..backends.mpi.partition import is_periodic, plain
from .module import Module

Halo = tuple[tuple[int, int], ...]


def _pairs(halo_shape: object, dims: int) -> Halo:
    widths = whole_numbers(np.ravel(halo_shape), "halo_shape")  # type: ignore[call-overload]
    if len(widths) != 2 * dims or min(widths, default=0) < 0:
        raise PartitionError(f"`halo_shape` (={halo_shape}) needs two non-negative numbers for each of {dims} dims.")
    return tuple(zip(widths[::2], widths[1::2], strict=True))


class HaloExchange(Module, Primitive):
    """Fill the halos of a padded block, in place.

    Parameters
    ----------
    P_x : a partition with as many axes as the tensor has dims
    halo_shape : this worker's rows before and after its block, for each dim; a bad one raises at the first call
    recv_buffer_shape, send_buffer_shape : only used for `slices`; what is sent follows from all workers' `halo_shape`
    buffer_manager : gets DistDL's four buffers, which stay empty

    Attributes
    ----------
    slices : after the first call, for each dim the parts of the block that are exchanged with the neighbours: left
        bulk, left ghost, right bulk, right ghost. They include the ghosts of earlier dims and exclude those of later
        ones. None if the buffer shapes were not given.
    """

    _keeps_plans = True

    def __init__(
        self,
        P_x: Partition,
        halo_shape: object,
        recv_buffer_shape: object = None,
        send_buffer_shape: object = None,
        buffer_manager: object = None,
    ) -> None:
        super().__init__()
        self.buffer_manager = check_manager(buffer_manager)
        self._periodic = is_periodic(P_x)
        self.P_x = plain(P_x)
        self.halo_shape: Halo = ()
        self._halo_problem: str | None = None  # raised at the first call, on all workers
        if self.P_x.active:
            try:
                self.halo_shape = _pairs(halo_shape, self.P_x.dim)
            except PartitionError as error:
                self._halo_problem = str(error)
        self.neighbor_ranks = P_x.neighbor_ranks(P_x.rank) if hasattr(P_x, "neighbor_ranks") and P_x.active else None
        self.recv_buffer_shape, self.send_buffer_shape = recv_buffer_shape, send_buffer_shape
        self.slices: list[list[tuple[slice, ...]]] | None = None
        self._takes_part(self.P_x)

    def _inner(self, x: Tensor) -> Tensor:
        for d, (before, after) in enumerate(self.halo_shape):
            x = x.narrow(d, before, x.shape[d] - before - after)
        return x

    def _problem_with(self, input: tuple[Tensor, ...]) -> str | None:
        problem = self._halo_problem or super()._problem_with(input)
        if problem is None and self.P_x.active:
            x = input[0]
            if x.dim() != len(self.halo_shape):
                return f"needs a tensor of {len(self.halo_shape)} dims, got shape {tuple(x.shape)}"
            if any(n < a + b for n, (a, b) in zip(x.shape, self.halo_shape, strict=True)):
                return f"needs a block padded by its halos {self.halo_shape}, got shape {tuple(x.shape)}"
        return problem

    def _distdl_module_setup(self, input: tuple[Tensor, ...]) -> None:
        transport, grid = self.P_x.transport, self.P_x.geometry
        layout, agreed = agree_layout(transport, self._team, self._title, grid, self._inner(input[0]))
        halos = Communicator(self.P_x).allgather(self.halo_shape)
        intervals = tuple(self._needs_along(d, layout, halos) for d in range(grid.dim))
        plan = route(layout, Needs(grid, intervals, self._periodic), transport.rank)
        self._region = []
        for d, (place, (before, _)) in enumerate(zip(grid.index_of(transport.rank), self.halo_shape, strict=True)):
            start, stop = intervals[d][place]
            self._region.append((before - (layout.cuts[d][place] - start), stop - start))
        if self.recv_buffer_shape is not None and self.send_buffer_shape is not None:
            self.slices = self._assemble_slices(input[0].shape, self.recv_buffer_shape, self.send_buffer_shape)
        self._plan(Move(transport, self._team, self._title, plan, self._nothing), agreed)
        hold_buffers(self.buffer_manager, 4, agreed.dtype)

    def _assemble_slices(
        self, x_local_shape: Sequence[int], recv_buffer_shape: object, send_buffer_shape: object
    ) -> list[list[tuple[slice, ...]]]:
        ghosts, bulks = np.asarray(recv_buffer_shape, dtype=int), np.asarray(send_buffer_shape, dtype=int)
        whole = [slice(0, int(n)) for n in x_local_shape]
        inner = [slice(int(a), int(n - b)) for n, (a, b) in zip(x_local_shape, ghosts, strict=True)]
        found = []
        for d, n in enumerate(x_local_shape):
            first, last = int(ghosts[d, 0]), int(n - ghosts[d, 1])
            ends = (first, first + bulks[d, 0]), (0, first), (last - bulks[d, 1], last), (last, n)
            found.append([(*whole[:d], slice(int(a), int(b)), *inner[d + 1 :]) for a, b in ends])
        return found

    def _needs_along(self, d: int, layout: Layout, halos: Sequence[Halo]) -> tuple[Interval, ...]:
        needs, extent = [], layout.global_shape[d]
        for place, (start, stop) in enumerate(pairwise(layout.cuts[d])):
            grid = layout.grid
            widths = {halos[i][d] for i, rank in enumerate(grid.ranks) if grid.index_of(rank)[d] == place}
            if len(widths) > 1:
                raise PartitionError(
                    f"{self._title}: workers with index {place} along axis {d} have different halos there: {sorted(widths)}."
                )
            before, after = widths.pop()
            wide = start - before, stop + after
            needs.append(wide if self._periodic[d] else (max(0, wide[0]), min(extent, wide[1])))
        return tuple(needs)

    def forward(self, x: Tensor) -> Tensor:
        if self._is_outside:
            return x.clone()
        assert self._operator is not None
        assert self._agreed is not None
        filled = self._move(self._inner(x), self._operator, self._agreed.requires_grad)
        if not any(map(any, self.halo_shape)) and not filled.requires_grad:
            return x
        # torch refuses to change a leaf in place, and the result needs a gradient if any worker's does
        leaf = torch.is_grad_enabled() and ((x.is_leaf and x.requires_grad) or filled.requires_grad > x.requires_grad)
        y = x.clone() if leaf else x
        region = y
        for d, (start, length) in enumerate(self._region):
            region = region.narrow(d, start, length)
        region.copy_(filled)
        if leaf and not x.requires_grad:
            with torch.no_grad():
                x.copy_(y)
        return y
