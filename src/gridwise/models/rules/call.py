"""The question put to a rule, and its answer.

A rule deals with placements and arguments, not with nodes of a graph:

    question    `Call`: an operator and its arguments, with a `GlobalTensor` (shape, dtype, placement) for each tensor
    answer      `Placed`: where each tensor has to lie, where the outputs then lie, and the function that computes them

The function gets this worker's tensors in the requested placements, in the order of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import UnsupportedError
from ...grid import Box, Layout
from ...operators.call import LocalFunction as LocalFunction
from ...operators.call import OperatorCall
from ..placement import SMALL, Cut, GlobalTensor, Placement, Replicated, Want, Workers, resized
from .empty_blocks import Reaching, of_nothing


class NoRule(UnsupportedError):
    """Raised by a rule that cannot handle these arguments; the message completes "cannot be run on blocks: ..."."""


class NothingCut(Exception):
    """Raised by `Call.first_cut`, `Call.whole` and others: there are no blocks, so every worker computes everything."""


@dataclass(frozen=True)
class Placed:
    """A rule's answer."""

    outputs: Placement | Sequence[Placement]
    """One for all outputs, or one for each."""
    run: LocalFunction
    inputs: Sequence[Want] = ()
    """Where each tensor argument has to lie; if left out, all stay where they are."""
    draws: bool = False
    """Whether `run` draws random numbers; its first argument is then a `random.RandomStream`."""
    gathers: str | None = None
    """Why a tensor is gathered that should have stayed in blocks; for the report."""
    moved: int = 0
    """The bytes that this worker receives within `run`, as the halos of a convolution; for the report."""
    combines: bool = False
    """Whether tensors are whole because the operator combines the elements along every dim that could be cut."""


@dataclass(frozen=True)
class Call(OperatorCall):
    """One call of an operator, on a grid of workers; tensors have the placement in which they lie now.

    That of the results is not known yet, and given as replicated.
    """

    workers: Workers
    name: str
    """For error messages: the operator, and where it is in the model."""
    keeps_alias: bool = False
    """Whether the output must share memory with its input on every worker: one is written to and the other read."""
    written: bool = False
    """Whether the first argument is changed in place, so that it must stay where it lies."""

    def block(self, layout: Layout) -> Box:
        """This worker's block."""
        return layout.block(self.workers.rank)

    def unless_empty(self, run: LocalFunction, *layouts: Layout) -> LocalFunction:
        """`run` of an operator that refuses empty blocks; these are made without it. One layout per output."""
        if all(layout.is_filled for layout in layouts):
            return run
        if any(self.block(layout).volume for layout in layouts):
            return run if isinstance(run, Reaching) else Reaching(run)
        made = [(self.block(layout).shape, value.dtype) for layout, value in zip(layouts, self.results, strict=True)]
        if len(made) == 1:
            return lambda *tensors: of_nothing(tensors, *made[0])
        return lambda *tensors: tuple(of_nothing(tensors, *each) for each in made)

    def first_cut(self) -> tuple[GlobalTensor, Layout]:
        """The first tensor and its layout; if nothing is cut, every worker computes the whole call."""
        x = self.tensors[0]
        return x, self._layout(x)

    def _layout(self, x: GlobalTensor) -> Layout:
        if x.layout is None:
            raise NoRule("blocks of other tensors than its first") if self.cut else NothingCut
        return x.layout

    def largest_cut(self) -> tuple[GlobalTensor, Layout]:
        """The largest tensor that is cut, and its layout; if there is none, every worker computes the whole call."""
        x = max(self.cut, key=lambda value: value.volume, default=None)
        if x is None or x.layout is None:
            raise NothingCut
        return x, x.layout

    def whole(self, x: GlobalTensor, dims: Sequence[int]) -> Layout:
        """The layout of a tensor with these dims whole, others cut; if none, every worker computes the whole call."""
        placed = self.workers.spread(x.shape, dims, like=self._layout(x))
        if not isinstance(placed, Cut):
            raise NothingCut
        return placed.layout

    def first_alone(self, want: Want) -> list[Want]:
        """The first tensor as wanted, all others where they lie."""
        return [want, *[None] * (len(self.tensors) - 1)]

    def others_whole(self, want: Want) -> list[Want]:
        """The first tensor as wanted, all others whole on every worker."""
        return [want, *[Replicated()] * (len(self.tensors) - 1)]

    def everywhere(self) -> Placed:
        """All tensors whole on every worker; all workers compute the same."""
        return Placed(Replicated(), self.locally(), [Replicated()] * len(self.tensors))

    def along_whole(self, dims: Sequence[int]) -> Placed:
        """The operator itself, on blocks of its first tensor that are whole along `dims`; only these change extent."""
        layout = self.whole(self.tensors[0], dims)
        targets = [resized(layout, dims, result.shape) for result in self.results]
        run = self.unless_empty(self.locally(), *targets)
        return Placed([Cut(target) for target in targets], run, self.others_whole(layout))

    def made_of_a_size(self) -> Placement:
        """The placement of a new tensor: cut like the model's input if it has as many dims and is not small."""
        grid, shape = self.workers.grid, self.result.shape
        if self.result.volume <= SMALL or grid.dim != len(shape) or grid.size == 1:
            return Replicated()
        return Cut(Layout.balanced(grid, shape))

    @property
    def cut(self) -> list[GlobalTensor]:
        """The tensors that are cut."""
        return [value for value in self.tensors if isinstance(value.placement, Cut)]


Rule = Callable[[Call], Placed]
