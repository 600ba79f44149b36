"""What a converted model does between its layers: line tensors up, slice cut dims, sum over them, share a parameter.

All plan for the global shapes at a call, like layers, and again when these change.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...errors import PartitionError
from ...grid import Grid, Interval, Layout, Needs, Shape, route, sliced_need
from ...partition import Partition
from ..engine.agreement import agree_layout
from ..engine.carrier import HALVES, Move
from ..engine.copy_and_sum import AllSum
from ..engine.module import Module
from ..engine.operator import apply
from ..parameters.blocks import Shared
from ..parameters.gradient_buckets import BucketMember


class Aligned(Module):
    """Bring tensors to blocks that torch can combine as they are: those of the result, balanced on `target`.

    Parameters
    ----------
    sources : where each tensor lies; None: all of it is on every worker
    target : where the result is to lie; with as many axes as the tensor with most dims has dims
    along : the dim along which they are concatenated; None: they broadcast
    exact : shapes must be equal, without broadcasting
    inplace : the first tensor is changed, so it must be the result's already
    """

    _keeps_plans = True

    def __init__(
        self,
        sources: Sequence[Partition | None],
        target: Partition,
        along: int | None = None,
        exact: bool = False,
        inplace: bool = False,
    ) -> None:
        super().__init__()
        self.sources, self.target, self.along, self.exact, self.inplace = sources, target, along, exact, inplace
        self._takes_part(*(P for P in sources if P is not None), target, signature=f"{along}, {exact}")

    def _distdl_module_setup(self, input: tuple[Tensor, ...]) -> None:
        assert self._transport is not None
        transport, team, dims = self._transport, self._team, self.target.dim
        layouts: list[Layout | None] = []
        self._records: list[bool] = []
        for P, x in zip(self.sources, input, strict=True):
            if P is None:
                layouts.append(None)
                self._records.append(False)
                continue
            layout, agreed = agree_layout(transport, team, self._says, P.grid, x)
            lacking = dims - P.dim
            grid = Grid(P.ranks, (1,) * lacking + P.shape)
            layouts.append(Layout(grid, ((0, 1),) * lacking + layout.cuts))
            self._records.append(agreed.requires_grad)
        shapes = [
            (1,) * (dims - x.dim()) + tuple(x.shape) if layout is None else layout.global_shape
            for layout, x in zip(layouts, input, strict=True)
        ]
        outputs = Layout.balanced(self.target.grid, self._result(shapes))
        self._moves = [
            self._cut(shape, outputs) if layout is None else self._move_to(layout, shape, outputs)
            for layout, shape in zip(layouts, shapes, strict=True)
        ]
        if self.inplace and self._moves[0] is not None:
            raise PartitionError(
                f"{self._says}: a tensor of shape {shapes[0]} cannot be changed in place to that of {shapes}."
            )

    def _result(self, shapes: list[Shape]) -> Shape:
        """The global shape of what is combined, with 1 along the dim of concatenation."""
        if self.along is not None or self.exact:
            rest = {tuple(n for d, n in enumerate(shape) if d != self.along) for shape in shapes}
            if len(rest) > 1:
                raise PartitionError(
                    f"{self._says}: tensors of shapes {', '.join(map(str, shapes))} do not fit together."
                )
            return tuple(1 if d == self.along else n for d, n in enumerate(shapes[0]))
        try:
            return tuple(torch.broadcast_shapes(*shapes))
        except RuntimeError:
            raise PartitionError(
                f"{self._says}: tensors of shapes {', '.join(map(str, shapes))} do not broadcast."
            ) from None

    def _needs(self, shape: Shape, outputs: Layout) -> list[list[Interval]]:
        lines = []
        for d, (n, cuts) in enumerate(zip(shape, outputs.cuts, strict=True)):
            if d == self.along:
                lines.append([(0, n)])
            elif n == 1 != cuts[-1]:
                lines.append([(0, 1)] * (len(cuts) - 1))
            else:
                lines.append(list(pairwise(cuts)))
        return lines

    def _move_to(self, layout: Layout, shape: Shape, outputs: Layout) -> Move | None:
        assert self._transport is not None
        intervals = tuple(tuple(line) for line in self._needs(shape, outputs))
        if layout.grid == outputs.grid and intervals == Needs.of_layout(layout).intervals:
            return None
        needs = Needs(outputs.grid, intervals, (False,) * outputs.grid.dim)
        plan = route(layout, needs, self._transport.rank)
        return Move(self._transport, self._team, self._says, plan, torch.clone)

    def _cut(self, shape: Shape, outputs: Layout) -> tuple[slice, ...] | None:
        assert self._transport is not None
        index = outputs.grid.index_of(self._transport.rank)
        mine = [line[i] for line, i in zip(self._needs(shape, outputs), index, strict=True)]
        return tuple(slice(*ends) for ends in mine)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        results = []
        for step, (x, move) in enumerate(zip(tensors, self._moves, strict=True)):
            if isinstance(move, tuple):
                x = x[move[len(move) - x.dim() :]]
            elif move is not None:
                x = x.reshape((1,) * (self.target.dim - x.dim()) + tuple(x.shape))
                x = self._move(x, move, self._records[step], step)
            results.append(x)
        return tuple(results)


class Rearranged(Module):
    """One movement from a partition to itself, planned for an input and a second, plain argument."""

    _keeps_plans = True
    _fetch: Move
    _records: bool

    def __init__(self, P_x: Partition) -> None:
        super().__init__()
        self.P_x = P_x
        self._takes_part(P_x)


class Sliced(Rearranged):
    """Slices of the global tensor along any dims, in balanced blocks."""

    def _structure_of(self, input: tuple) -> Hashable:
        return super()._structure_of(input), str(input[1])

    def _distdl_module_setup(self, input: tuple) -> None:
        assert self._transport is not None
        x, slices = input
        layout, agreed = agree_layout(self._transport, self._team, self._says, self.P_x.grid, x)
        ranges = [range(*s.indices(n)) for s, n in zip(slices, layout.global_shape, strict=True)]
        target = Layout.balanced(layout.grid, [len(r) for r in ranges])
        needs = Needs(
            layout.grid,
            tuple(
                tuple(sliced_need(r, outputs) for outputs in pairwise(cuts))
                for r, cuts in zip(ranges, target.cuts, strict=True)
            ),
            (False,) * layout.grid.dim,
        )
        self._steps = tuple(slice(None, None, r.step) for r in ranges)
        plan = route(layout, needs, self._transport.rank)
        self._fetch = Move(self._transport, self._team, self._says, plan, torch.clone)
        self._records = agreed.requires_grad

    def forward(self, x: Tensor, slices: tuple[slice, ...]) -> Tensor:
        return self._move(x, self._fetch, self._records)[self._steps]


class Summed(Module):
    """The sum or mean over some dims, kept with extent 1, in balanced blocks: the first worker along them has it.

    Bytes: two times the result, whatever the extent of the dims.
    """

    _keeps_plans = True

    def __init__(self, P_x: Partition, dims: Sequence[int], mean: bool) -> None:
        super().__init__()
        self.P_x, self.dims, self.mean = P_x, tuple(dims), mean
        self._takes_part(P_x, signature=f"{self.dims}, mean={mean}")

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        assert self._transport is not None
        grid, rank = self.P_x.grid, self._transport.rank
        layout, agreed = agree_layout(self._transport, self._team, self._says, grid, input[0])
        self._count = math.prod(layout.global_shape[d] for d in self.dims)
        members = tuple(sorted(grid.team_along(rank, self.dims)))
        self._sum = AllSum(self._transport, self._team, self._says, members)
        index = grid.index_of(rank)
        self._empty = [d for d in self.dims if index[d]]
        self._records = agreed.requires_grad

    def forward(self, x: Tensor) -> Tensor:
        values = x.float() if x.dtype in HALVES else x
        y = self._move(values.sum(self.dims, keepdim=True), self._sum, self._records)
        y = y / self._count if self.mean else y
        for d in self._empty:
            y = y.narrow(d, 0, 0)
        return y.to(x.dtype) if x.dtype in HALVES else y


class Replicated(Module):
    """A parameter that every worker has all of: itself, with its gradient summed over the workers."""

    _keeps_plans = True

    def __init__(self, P_x: Partition, name: str) -> None:
        super().__init__()
        self._takes_part(P_x, signature=name)
        assert self._transport is not None
        self._name = name
        self._shared = Shared(self._transport, self._team, f"the parameter {name}")
        self._bucketed: dict[str, Tensor] = {}

    def borrower(self, model: torch.nn.Module) -> BucketMember | None:
        """For the parameter of `model`, if its gradient has to be summed."""
        owner, _, name = self._name.rpartition(".")
        holder = model.get_submodule(owner)
        if len(self._team) == 1 or not getattr(holder, name).requires_grad:
            return None
        return BucketMember(holder, name, self._shared, self._bucketed, self._says)

    def forward(self, value: Tensor) -> Any:
        if self._bucketed:
            (value,) = self._bucketed.values()
            return value
        if not (value.requires_grad and torch.is_grad_enabled()) or len(self._team) == 1:
            return value
        return apply(value, self._shared, self._ticket, True)
