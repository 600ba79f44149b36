"""DistDL's primitives: Gridwise's, between DistDL's partitions.

`DistributedTranspose` is the old name of `Repartition`, which DistDL deprecated: using it warns.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
from torch import Tensor

from gridwise import nn as own
from gridwise.errors import PartitionError
from gridwise.grid import Layout
from gridwise.nn.primitives.base import Primitive
from gridwise.partition import Partition

from ..backends.mpi.buffer import check_manager, hold_buffers
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


Overlap = tuple[tuple[slice, ...], np.ndarray, int | str] | tuple[None, None, None]


class Repartition(Module, own.Repartition):
    """Moves any blocks on `P_x` to balanced blocks on `P_y`, which must not cut a dim of extent 1."""

    _keeps_plans = True
    _layouts: tuple[Layout, Layout] | None = None
    """The blocks of input and output, after the first call."""

    def __init__(
        self, P_x: Partition, P_y: Partition, preserve_batch: bool = True, buffer_manager: object = None
    ) -> None:
        super().__init__(plain(P_x), plain(P_y), preserve_batch)
        self.buffer_manager = check_manager(buffer_manager)

    def _distdl_module_setup(self, input: tuple[Tensor, ...]) -> None:
        super()._distdl_module_setup(input)
        if self.buffer_manager is not None:
            overlaps = *self.P_x_to_y_overlaps, *self.P_y_to_x_overlaps
            away = [whose for _, _, whose in overlaps if whose not in (None, "self")]
            hold_buffers(self.buffer_manager, len(away), input[0].dtype)

    def _target(self, source: Layout) -> Layout:
        shape = source.global_shape
        if any(n == 1 < parts for n, parts in zip(shape, self.P_y.shape, strict=True)):
            raise PartitionError(
                f"{self._title}: `P_y` (={self.P_y.shape}) cuts a dim of extent 1 of a tensor of shape {shape}.\n"
                "  fix: gridwise.nn.Repartition takes such tensors, and leaves workers without a part."
            )
        self._layouts = source, super()._target(source)
        return self._layouts[1]

    @property
    def P_x_to_y_overlaps(self) -> list[Overlap]:
        """For each worker of `P_y`, what of this worker's input goes there."""
        return self._overlaps(*self._layouts) if self._layouts else []

    @property
    def P_y_to_x_overlaps(self) -> list[Overlap]:
        """For each worker of `P_x`, what of this worker's output comes from there."""
        return self._overlaps(*reversed(self._layouts)) if self._layouts else []

    def _overlaps(self, here: Layout, there: Layout) -> list[Overlap]:
        """Slices of this worker's block, their shape, and whose they are: 'self', or a place in the union of both."""
        rank = self.P_x.transport.rank
        if rank not in here.grid:
            return []
        mine, union = here.block(rank), self.P_x.create_partition_union(self.P_y).ranks
        found: list[Overlap] = []
        for other, block in there.blocks():
            common = mine.intersect(block)
            if common is None:
                found.append((None, None, None))
            else:
                where = "self" if other == rank else union.index(other)
                found.append((common.relative_to(mine).slices, np.array(common.shape), where))
        return found


def _plain(value: object) -> object:
    return plain(value) if isinstance(value, Partition) else value


def __getattr__(name: str) -> Any:
    if name != "DistributedTranspose":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("DistributedTranspose is Repartition now.", DeprecationWarning, stacklevel=2)
    return Repartition
