"""Sum tensors along the axes where the target grid has one worker and the source grid has several.

forward  y_i = sum_j x_j    over the workers j of P_x that match worker i of P_y
adjoint  x_j = y_i          a broadcast
bytes    the tensor once from each worker, along a tree
"""

from __future__ import annotations

from .grid_copies import GridCopy


class SumReduce(GridCopy):
    """Sum the tensors of the workers of `P_x` that match a worker of `P_y`, there.

    The adjoint of `Broadcast` from `P_y` to `P_x`, with the roles of the grids exchanged.

    Parameters
    ----------
    P_x, P_y : partitions of input and output
    transpose_src, transpose_dest : reverse the axes of `P_x`, of `P_y`, before they are matched
    preserve_batch : a worker without output returns shape ``(batch, 0)`` instead of ``(0,)``

    Notes
    -----
    Forward: ``y_i = sum_j x_j``. Adjoint: ``x_j = y_i`` (`Broadcast`). Bytes: one tensor from each worker.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1])
    >>> gridwise.nn.SumReduce(P_x, P_x)(torch.ones(2))
    tensor([1., 1.])
    """

    backwards = True
