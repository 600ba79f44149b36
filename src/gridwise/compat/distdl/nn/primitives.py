"""DistDL's primitives: Gridwise's, between DistDL's partitions.

`DistributedTranspose` is the old name of `Repartition`, which DistDL deprecated: using it warns.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from torch import Tensor

from gridwise import nn as own
from gridwise.errors import PartitionError
from gridwise.grid import Layout, Shape
from gridwise.nn.primitives.base import Primitive
from gridwise.partition import Partition

from ..backends.mpi.buffer import check_manager
from ..backends.mpi.partition import plain
from .module import Module


class _BetweenPlain(Module, Primitive):
    """Takes the arguments of Gridwise's primitive, with DistDL's partitions among them."""

    problem: str | None = None
    """What a layer has found wrong with its input on this worker; the next call raises it on all workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*map(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})

    def _problem_with(self, input: tuple[Tensor, ...]) -> str | None:
        return self.problem or super()._problem_with(input)

    def __init_subclass__(cls) -> None:
        cls.__signature__ = inspect.signature(cls.__bases__[-1])  # type: ignore[attr-defined]


class Broadcast(_BetweenPlain, own.Broadcast):
    """Copies from `P_x` to `P_y`, by the broadcasting rule; see `gridwise.nn.Broadcast`."""


class SumReduce(_BetweenPlain, own.SumReduce):
    """Sums from `P_x` to `P_y`, by the broadcasting rule; see `gridwise.nn.SumReduce`."""


class AllSumReduce(_BetweenPlain, own.AllSumReduce):
    """The sum over the workers along `axes_reduce`, or along all but `axes_keep`, on each of them."""


class Repartition(Module, own.Repartition):
    """Moves any blocks on `P_x` to balanced blocks on `P_y`, which must not cut a dim of extent 1."""

    def __init__(
        self, P_x: Partition, P_y: Partition, preserve_batch: bool = True, buffer_manager: object = None
    ) -> None:
        check_manager(buffer_manager)
        super().__init__(plain(P_x), plain(P_y), preserve_batch)

    def _target(self, shape: Shape) -> Layout:
        if any(n == 1 < parts for n, parts in zip(shape, self.P_y.shape, strict=True)):
            raise PartitionError(
                f"{self._title}: `P_y` (={self.P_y.shape}) cuts a dim of extent 1 of a tensor of shape {shape}.\n"
                "  fix: gridwise.nn.Repartition takes such tensors, and leaves workers without a part."
            )
        return super()._target(shape)


def _plain(value: object) -> object:
    return plain(value) if isinstance(value, Partition) else value


def __getattr__(name: str) -> Any:
    if name != "DistributedTranspose":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("DistributedTranspose is Repartition now.", DeprecationWarning, stacklevel=2)
    return Repartition
