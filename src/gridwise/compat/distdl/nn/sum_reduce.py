"""`SumReduce`: Gridwise's."""

from __future__ import annotations

from gridwise.nn.primitives.sum_reduce import SumReduce as GridwiseSumReduce
from gridwise.partition import Partition

from ..backends.mpi.partition import plain


class SumReduce(GridwiseSumReduce):
    """From `P_x` to `P_y`, by the rule of broadcasting; see `gridwise.nn.SumReduce`."""

    def __init__(
        self,
        P_x: Partition,
        P_y: Partition,
        transpose_src: bool = False,
        transpose_dest: bool = False,
        preserve_batch: bool = True,
    ) -> None:
        super().__init__(plain(P_x), plain(P_y), transpose_src, transpose_dest, preserve_batch)
