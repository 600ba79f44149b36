"""What an operator does, said once and without workers: which boxes of its inputs a box of its output needs, and the
output's box from these.

    local        needs(box)  ──►  a box of each input          run(box, *inputs)  ──►  the output on the box
    collecting   visits disjoint boxes of its inputs, and makes something small of all: statistics, sums, losses
    composed     a few operators of these kinds: a group norm collects statistics, and then normalises locally

A box is one of the *global* tensor, and lies within it. `run` adds padding, at the true border only, and computes with
global coordinates. An operator that couples all rows of a dim needs all of them, whatever the box; `run` keeps what was
asked for. Who cuts tensors into boxes, and how boxes travel, is the business of those who call: `gridwise.tiled` reads
them from stored arrays, workers send them to each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..grid import Box, Shape

Needs = Callable[[Box], Sequence[Box]]
"""For a box of the output, the box of each tensor argument, in the order of the arguments."""


@dataclass(frozen=True)
class Local:
    """An operator whose output on a box depends on one box of each input."""

    needs: Needs
    run: Callable[..., Any]
    """``run(box, *tensors)``: the output on `box`, from each tensor on the box that `needs` gave. A tuple where there are
    several outputs, which then all have the same shape. With `draws`, a `RandomStream` comes before the box."""
    flops: float = 1.0
    """About how many operations an element of the output takes."""
    draws: bool = False
    """Whether it draws random numbers, by the global index of each element."""
    gradients: Callable[..., Sequence[Tensor | None] | None] | None = None
    """``gradients(box, tensors, cotangent, wanted)``: those of the wanted tensors, without computing the output again; None
    for arguments of which this cannot be said."""
    planned: Callable[[Box], Callable[..., Any]] | None = None
    """``planned(box)(*tensors)`` is ``run(box, *tensors)``, where that takes thought: for those who compute a box often."""
    without_gradient: tuple[int, ...] = ()
    """The tensors to which no gradient comes back, though they are of real numbers."""

    @classmethod
    def planning(cls, needs: Needs, planned: Callable[[Box], Callable[..., Any]], flops: float = 1.0) -> Local:
        """An operator that is planned for a box, even to be run there once."""
        return cls(needs, lambda box, *tensors: planned(box)(*tensors), flops, planned=planned)

    def on(self, box: Box) -> Callable[..., Any]:
        """``run`` on this box: a function of the tensors."""
        return partial(self.run, box) if self.planned is None else self.planned(box)


class Collecting(ABC):
    """An operator with small results, made by visiting disjoint boxes that together are all of `space`."""

    space: Shape
    """The shape of what is cut into boxes."""
    flops: float = 1.0
    """About how many operations an element of `space` takes."""
    local: Local | None = None
    """The same as a local operator, which needs more than a box at once, for those who would rather not wait for all
    boxes; None if there is none."""

    @abstractmethod
    def needs(self, box: Box) -> Sequence[Box]:
        """For a box of `space`, the box of each tensor argument."""

    @abstractmethod
    def add(self, state: Any, box: Box, *tensors: Tensor) -> Any:
        """The state after visiting one more box; before the first, it is None."""

    @abstractmethod
    def finish(self, state: Any) -> tuple[Tensor, ...]:
        """The results, from the state after all boxes."""

    @abstractmethod
    def gradients(
        self, state: Any, box: Box, tensors: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """The gradient of each tensor argument on its box, from the final state and the cotangents of the results."""


class Summed(Collecting):
    """Collects sums: of what `partial` gives for each box.

    Parameters
    ----------
    space : the shape of what is cut into boxes
    needs : for a box of `space`, the box of each tensor argument
    partial : ``partial(box, *tensors)``: the summands of a box, a tuple of tensors with the same shapes for every box
    result : the results from the sums, in differentiable code
    flops : about how many operations an element of `space` takes
    """

    def __init__(
        self,
        space: Shape,
        needs: Needs,
        partial: Callable[..., tuple[Tensor, ...]],
        result: Callable[..., tuple[Tensor, ...]] = lambda *sums: sums,
        flops: float = 1.0,
    ) -> None:
        self.space, self.partial, self.result, self.flops = space, partial, result, flops
        self._needs = needs

    def needs(self, box: Box) -> Sequence[Box]:
        return self._needs(box)

    def add(self, state: Any, box: Box, *tensors: Tensor) -> Any:
        made = self.partial(box, *tensors)
        return made if state is None else tuple(a + b for a, b in zip(state, made, strict=True))

    def finish(self, state: Any) -> tuple[Tensor, ...]:
        return self.result(*state)

    def gradients(
        self, state: Any, box: Box, tensors: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        with torch.enable_grad():
            sums = [total.detach().requires_grad_(total.is_floating_point() or total.is_complex()) for total in state]
            of_sums = _pulled_back(self.result(*sums), sums, cotangents)
            given = [x.detach().requires_grad_(x.is_floating_point() or x.is_complex()) for x in tensors]
            return _pulled_back(self.partial(box, *given), given, of_sums)


def _pulled_back(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients of the inputs; None for those that nothing depends on."""
    pairs = [(y, c) for y, c in zip(outputs, cotangents, strict=True) if c is not None and y.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    if not pairs or not wanted:
        return [None] * len(inputs)
    made, of_made = [y for y, _ in pairs], [c for _, c in pairs]
    found = iter(torch.autograd.grad(made, wanted, of_made, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in inputs]


@dataclass(frozen=True)
class Composed:
    """An operator that consists of others: ``build(builder, *values)`` makes them, and returns its result or results."""

    build: Callable[..., Any]


class Builder(ABC):
    """Adds operators; a value stands for the tensor that one of them makes."""

    @abstractmethod
    def local(self, operator: Local, values: Sequence[Any], shape: Shape, dtype: torch.dtype, name: str = "") -> Any:
        """The output of a local operator, of this global shape and dtype."""

    @abstractmethod
    def collected(self, operator: Collecting, values: Sequence[Any], name: str = "") -> tuple[Any, ...]:
        """The results of a collecting operator."""

    @abstractmethod
    def call(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """The result of an ATen operator, of values and other arguments, as the table has it."""

    @abstractmethod
    def write(self, place: Any, value: Any) -> None:
        """Give a tensor argument its new value, once, after the call; for operators that change their arguments."""


AnyOperator = Local | Collecting | Composed
