"""DistDL's arguments of `Broadcast` and `SumReduce`, in front of Gridwise's layers."""

from __future__ import annotations

from gridwise.nn.primitives.grid_copies import GridCopy
from gridwise.partition import Partition

from ..backends.mpi.partition import plain


class PlainGridCopy(GridCopy):
    """Between DistDL's partitions `P_x` and `P_y`, by the rule of broadcasting."""

    def __init__(
        self,
        P_x: Partition,
        P_y: Partition,
        transpose_src: bool = False,
        transpose_dest: bool = False,
        preserve_batch: bool = True,
    ) -> None:
        super().__init__(plain(P_x), plain(P_y), transpose_src, transpose_dest, preserve_batch)
