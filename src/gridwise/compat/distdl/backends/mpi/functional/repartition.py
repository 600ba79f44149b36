"""Blocks of one grid to balanced blocks of another."""

from __future__ import annotations

from torch import Tensor

from ..partition import MPICartesianPartition


class RepartitionFunction:
    """Called by `apply`, like a function of autograd. Who sends what is worked out again: overlaps and buffers are not read."""

    @staticmethod
    def apply(
        input: Tensor,
        P_union: object,
        x_global_structure: object,
        x_local_structure: object,
        y_local_structure: object,
        P_x: MPICartesianPartition,
        P_x_to_y_overlaps: object,
        P_x_to_y_buffers: object,
        P_y: MPICartesianPartition,
        P_y_to_x_overlaps: object,
        P_y_to_x_buffers: object,
        preserve_batch: bool,
    ) -> Tensor:
        from ....nn.repartition import Repartition

        return Repartition(P_x, P_y, preserve_batch)(input)
