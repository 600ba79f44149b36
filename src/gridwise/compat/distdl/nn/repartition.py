"""`Repartition`: Gridwise's."""

from __future__ import annotations

from gridwise.nn.primitives.repartition import Repartition as GridwiseRepartition
from gridwise.partition import Partition

from ..backends.mpi.buffer import check_manager
from ..backends.mpi.partition import plain


class Repartition(GridwiseRepartition):
    """From any blocks on `P_x` to balanced ones on `P_y`."""

    def __init__(
        self, P_x: Partition, P_y: Partition, preserve_batch: bool = True, buffer_manager: object = None
    ) -> None:
        check_manager(buffer_manager)
        super().__init__(plain(P_x), plain(P_y), preserve_batch)
