"""Sum tensors along the axes where the target grid has one worker and the source grid has several.

forward  y_i = sum_j x_j    over the workers j of P_x that match worker i of P_y
adjoint  x_j = y_i          a broadcast
bytes    the tensor once from each worker, along a tree
"""

from __future__ import annotations

from ..docstrings import documented_like
from .broadcast import Broadcast
from .grid_copies import GridCopy


@documented_like(Broadcast)
class SumReduce(GridCopy):
    """Sum, on each worker of `P_y`, the tensors of the workers of `P_x` that match it.

    The adjoint of `Broadcast` from `P_y` to `P_x`, with the roles of the grids exchanged.

    Notes
    -----
    Forward: ``y_i = sum_j x_j``. Adjoint: ``x_j = y_i`` (`Broadcast`). Bytes: one tensor from each worker.
    """

    backwards = True
