"""Copy tensors along the axes where the source grid has one worker and the target grid has several.

forward  y_j = x_i          for every worker j of P_y that matches worker i of P_x
adjoint  x_i = sum_j y_j    a sum-reduction
bytes    the tensor once to each team, along a tree
"""

from __future__ import annotations

from torch import Tensor

from ..grid import Copies
from ..partition import Partition
from .agreement import agree_same
from .copy import Copy
from .primitive import Primitive


class Broadcast(Primitive):
    """Copy each worker's tensor of `P_x` to the workers of `P_y` that match it.

    Shapes match as arrays broadcast: the grid of `P_x` is padded with ones on the left, then every axis must be 1 or
    equal to that of `P_y`.

    Parameters
    ----------
    P_x, P_y : partitions of input and output
    transpose_src, transpose_dest : reverse the axes of `P_x`, of `P_y`, before they are matched
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

    sums = True

    def __init__(
        self,
        P_x: Partition,
        P_y: Partition,
        transpose_src: bool = False,
        transpose_dest: bool = False,
        preserve_batch: bool = True,
    ) -> None:
        super().__init__()
        self.P_x, self.P_y = P_x, P_y
        self.transpose_src, self.transpose_dest, self.preserve_batch = transpose_src, transpose_dest, preserve_batch
        self.copies = Copies(P_x.grid, P_y.grid, transpose_src, transpose_dest)
        self.identity = self.copies.is_identity
        self._takes_part(P_x, P_y, signature=f"transpose={transpose_src, transpose_dest}")

    def _distdl_module_setup(self, input: tuple[Tensor, ...]) -> None:
        transport, copies = self.P_x.transport, self.copies
        me = transport.rank
        teams = copies.teams_of(me)
        groups = [(members, owner == me) for owner, members in teams]
        shapes, agreed = agree_same(transport, self._team, self._says, input[0], groups)
        known = dict(zip((owner for owner, _ in teams), shapes, strict=True))
        shape = known[copies.source_of(me)] if me in copies.target else None
        operator = Copy(transport, self._team, self._says, copies, shape, self._nothing, known.get(me))
        self._plan(operator, agreed)
