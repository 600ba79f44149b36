"""`AllSumReduce`: Gridwise's."""

from __future__ import annotations

from collections.abc import Iterable

from gridwise.nn.primitives.all_sum_reduce import AllSumReduce as GridwiseAllSumReduce
from gridwise.partition import Partition

from ..backends.mpi.partition import plain


class AllSumReduce(GridwiseAllSumReduce):
    """The sum over the workers along `axes_reduce`, or along all but `axes_keep`, on each of them."""

    def __init__(
        self, P_x: Partition, axes_reduce: Iterable[int] | None = None, axes_keep: Iterable[int] | None = None
    ) -> None:
        super().__init__(plain(P_x), axes_reduce, axes_keep)
