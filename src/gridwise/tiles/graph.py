"""A recording as operators on boxes: values, and the operations that make them. No tensor is ever written to.

    GlobalValue  a tensor of the recorded call: its global shape and dtype, and what makes it
    Operation    a local or collecting operator with its inputs and outputs, or one that is computed whole

The operations are in an order in which they can run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..grid import Box, Shape
from ..models.recording import ValueSource
from ..operators.call import TensorSpec
from ..operators.on_boxes import Collecting, Local

if TYPE_CHECKING:
    from .autograd_functions import OwnBackward


@dataclass(frozen=True)
class Whole:
    """An operator that is computed once, from whole inputs; its outputs may have any shapes."""

    run: Callable[..., Any]
    reason: str
    """Why it is not computed box by box."""
    draws: bool = False
    flops: float = 1.0


@dataclass(eq=False)
class GlobalValue:
    """A tensor of the recorded call."""

    spec: TensorSpec
    requires_grad: bool
    by: Operation | None = None
    """What makes it; None for a source."""
    place: int = 0
    """Its place among the outputs of that operation."""
    source: ValueSource | None = None
    of_parameters: bool = False
    """Whether it is, or depends only on, parameters, buffers and constants."""

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def nbytes(self) -> int:
        return self.spec.nbytes

    @property
    def box(self) -> Box:
        """All of it."""
        return Box.of_shape(self.spec.shape)

    @property
    def is_fixed(self) -> bool:
        """Whether it is a parameter, a buffer or a constant: something that is there, whole, before the call."""
        return self.source is not None and self.source.kind != "input"

    def __repr__(self) -> str:
        made = self.source.kind + " " + self.source.name if self.source else self.by.name if self.by else "?"
        return f"<{tuple(self.shape)} {made}>"


@dataclass(eq=False)
class Operation:
    """One operator of the recorded call."""

    number: int
    operator: Local | Collecting | Whole
    inputs: tuple[GlobalValue, ...]
    outputs: tuple[GlobalValue, ...]
    name: str
    """The operator, the module and the line, for messages."""
    draw: int = 0
    """The number of its stream of random numbers."""
    autocast: Sequence[tuple[Any, ...]] = ()
    """The arguments of `torch.autocast` that the model has switched on for it."""
    backward: OwnBackward | None = None
    """For an output of a `torch.autograd.Function`: how the call is differentiated."""

    @property
    def is_local(self) -> bool:
        return isinstance(self.operator, Local)

    @property
    def shape(self) -> Shape:
        """The shape that is cut into boxes."""
        return self.operator.space if isinstance(self.operator, Collecting) else self.outputs[0].shape

    def needs(self, box: Box) -> Sequence[Box]:
        """The box of each input, for a box of the outputs, or of the space of a collecting operator."""
        if isinstance(self.operator, Whole):
            return [value.box for value in self.inputs]
        return self.operator.needs(box)

    @property
    def flops(self) -> float:
        """About how many operations all of it takes."""
        volume = 1
        for n in self.shape:
            volume *= n
        return self.operator.flops * volume

    def casting(self) -> AbstractContextManager[Any]:
        """The mode of autocast in which the model calls it."""
        if not self.autocast:
            return nullcontext()
        device, dtype, enabled, cache = self.autocast[-1]
        return torch.autocast(device, dtype, enabled, cache)


@dataclass
class OperatorGraph:
    """All of a recorded call."""

    name: str
    operations: list[Operation]
    inputs: dict[int, GlobalValue]
    """By position."""
    fixed: list[GlobalValue]
    """Parameters, buffers and constants."""
    outputs: list[GlobalValue]
    writes: list[tuple[GlobalValue, GlobalValue]]
    """Buffers that the call changes, and what they become."""
    checks: list[tuple[GlobalValue, str, str]]
    """Numbers that must be true, each with its line and its message (see `models.recording.checks`)."""
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    draws: bool = False

    @property
    def wanted(self) -> list[GlobalValue]:
        """What is kept until the end: outputs, what buffers become, and checks."""
        return [*self.outputs, *(new for _, new in self.writes), *(value for value, *_ in self.checks)]

    def values(self) -> Iterator[GlobalValue]:
        yield from self.inputs.values()
        yield from self.fixed
        for operation in self.operations:
            yield from operation.outputs
