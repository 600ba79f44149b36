"""Copy tensors along the axes where the source grid has one worker and the target grid has several.

forward  y_j = x_i          for every worker j of P_y that matches worker i of P_x
adjoint  x_i = sum_j y_j    a sum-reduction
bytes    the tensor once to each team, along a tree
"""

from __future__ import annotations

from .grid_copies import GridCopy


class Broadcast(GridCopy):
    """Copy the tensor of each worker of `P_x` to the workers of `P_y` that match it.

    The shapes of the grids match as in array broadcasting: that of `P_x` is padded with ones on the left, then every
    axis must be 1 or equal to that of `P_y`.

    Parameters
    ----------
    P_x, P_y : partitions of input and output
    transpose_src, transpose_dest : reverse the axes of `P_x` or of `P_y` before they are matched
    preserve_batch : a worker without output returns shape ``(batch, 0)`` instead of ``(0,)``

    Notes
    -----
    Forward: ``y_j = x_i``. Adjoint: ``x_i = sum_j y_j`` (`SumReduce`). Bytes: one tensor to each worker.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1])
    >>> gridwise.nn.Broadcast(P_x, P_x)(torch.ones(2))
    tensor([1., 1.])
    """
