"""Movements from one placement to another between the operators of a model, each a linear operator with its adjoint.

from           to                    movement                            its adjoint
cut            other blocks, boxes   pieces are copied                   pieces are sent back and added
cut            replicated            everyone gets all blocks            everyone gets the sum of its block
replicated     blocks, boxes         a slice                             padding with zeros: a partial sum
partial sum    replicated            sum over the workers                sum over the workers
partial sum    blocks                everyone gets the sum of its block  everyone gets all blocks
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..grid import Box, Grid, Layout, Needs, route
from ..nn.engine.agreement import key_of
from ..nn.engine.carrier import Move
from ..nn.engine.copy_and_sum import AllSum
from ..nn.engine.global_sum import GlobalSum
from ..nn.engine.operator import CallId, Operator, apply
from ..nn.parameters.blocks import ReplicatedBlock
from .placement import Cut, GlobalTensor, Partial, Placement, Replicated, Want, Workers, everything

Movement = Callable[[Tensor], Tensor]


def applied(operator: Operator) -> Movement:
    """The operator as a differentiable function of tensors."""
    call_id = CallId(key_of(operator.name), 0)
    return lambda x: apply(x, operator, call_id, x.requires_grad and torch.is_grad_enabled())


def is_there(value: GlobalTensor, want: Want) -> bool:
    """Whether a tensor already lies as wanted."""
    if want is None:
        return not isinstance(value.placement, Partial)
    if isinstance(want, Replicated):
        return isinstance(value.placement, Replicated)
    if value.layout is None:
        return isinstance(value.placement, Replicated) and _is_everything(want, value)
    return _needs_of(want) == Needs.of_layout(value.layout)


def _is_everything(want: Layout | Needs, value: GlobalTensor) -> bool:
    """Whether every worker wants the whole tensor."""
    intervals = _needs_of(want).intervals
    own = intervals[len(intervals) - value.dim :]
    return all(need == (0, n) for line, n in zip(own, value.shape, strict=True) for need in line)


def received(value: GlobalTensor, want: Want, workers: Workers) -> int:
    """The bytes that this worker receives in a movement to the wanted placement."""
    if isinstance(value.placement, Partial):
        return value.nbytes // workers.size if isinstance(want, Layout) else value.nbytes
    if value.layout is None:
        return 0
    needs = everything(value.layout) if isinstance(want, Replicated) else _needs_of(want)
    box, lacking = needs.box(workers.rank), needs.grid.dim - value.dim
    own = value.layout.block(workers.rank)
    return Box(box.start[lacking:], box.stop[lacking:]).outside(own) * value.dtype.itemsize


def movement(value: GlobalTensor, want: Want, workers: Workers, name: str) -> Movement:
    """The movement from a tensor's placement to the wanted one, which differs."""
    if isinstance(value.placement, Partial):
        return _of_sum(want, workers, name)
    if isinstance(value.placement, Replicated):
        assert isinstance(want, Layout | Needs)
        return _slice(want, workers.rank, value.dim)
    layout = value.placement.layout
    needs = everything(layout) if isinstance(want, Replicated) else _needs_of(want)
    lacking = needs.grid.dim - layout.grid.dim
    move = applied(move_along(layout, needs, workers, name))
    return (lambda x: move(x.reshape((1,) * lacking + tuple(x.shape)))) if lacking else move


def move_along(layout: Layout, needs: Needs, workers: Workers, name: str) -> Move:
    """The movement that gives each worker the box that it needs; extra leading dims of `needs` have an extent of 1."""
    lacking = needs.grid.dim - layout.grid.dim
    if lacking:
        grid = Grid(layout.grid.ranks, (1,) * lacking + layout.grid.shape)
        layout = Layout(grid, ((0, 1),) * lacking + layout.cuts)
    return Move(workers.transport, workers.team, name, route(layout, needs, workers.rank), torch.clone)


def _needs_of(want: Want) -> Needs:
    if isinstance(want, Layout):
        return Needs.of_layout(want)
    assert isinstance(want, Needs)
    return want


def _slice(want: Layout | Needs, rank: int, dim: int) -> Movement:
    needs = _needs_of(want)
    box = needs.box(rank)
    ends = list(zip(box.start, box.stop, strict=True))[needs.grid.dim - dim :]

    def sliced(x: Tensor) -> Tensor:
        for d, (start, stop) in enumerate(ends):
            if (start, stop) != (0, x.shape[d]):
                x = x.narrow(d, start, stop - start)
        return x

    return sliced


def _of_sum(want: Want, workers: Workers, name: str) -> Movement:
    """The movement of a partial sum to what is wanted; boxes that may overlap are slices of the whole sum."""
    if isinstance(want, Layout):
        return applied(move_along(want, everything(want), workers, f"the adjoint of {name}").adjoint)
    total = applied(AllSum(workers.transport, workers.team, name, workers.team))
    if not isinstance(want, Needs):
        return total
    return lambda x: _slice(want, workers.rank, x.dim())(total(x))


# Where tensors enter and leave a model


def enter(value: GlobalTensor, workers: Workers, name: str) -> Movement | None:
    """The movement of an input into the model: the gradient of an input that all workers hold is summed over them."""
    if isinstance(value.placement, Cut) or workers.size == 1:
        return None
    return applied(ReplicatedBlock(workers.transport, workers.team, name))


def leave(value: GlobalTensor, workers: Workers, name: str) -> tuple[Movement | None, Placement]:
    """The movement of an output to the user, and its placement: sums are completed, replicas count once in backward."""
    if isinstance(value.placement, Cut) or workers.size == 1:
        return None, value.placement if isinstance(value.placement, Cut) else Replicated()
    kind = GlobalSum if isinstance(value.placement, Partial) else CountedOnce
    return applied(kind(workers.transport, workers.team, name)), Replicated()


class CountedOnce(Operator):
    """Hand the user a tensor that all workers hold as one value."""

    @property
    def adjoint(self) -> FirstAlone:
        return FirstAlone(self)

    def __call__(self, x: Tensor) -> Tensor:
        return x.clone()


class FirstAlone(Operator):
    """The adjoint of `CountedOnce`: the cotangent as a partial sum, of which the first worker has everything."""

    def __init__(self, forth: CountedOnce) -> None:
        super().__init__(forth.transport, forth.team, f"the adjoint of {forth.name}")
        self.forth = forth

    @property
    def adjoint(self) -> CountedOnce:
        return self.forth

    def __call__(self, y: Tensor) -> Tensor:
        return y.clone() if self.transport.rank == self.team[0] else torch.zeros_like(y)
