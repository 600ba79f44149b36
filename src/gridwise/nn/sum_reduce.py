"""Sum tensors along the axes where the target grid has one worker and the source grid has several.

forward  y_i = sum_j x_j    over the workers j of P_x that match worker i of P_y
adjoint  x_j = y_i          a broadcast
bytes    the tensor once from each worker, along a tree
"""

from __future__ import annotations

from torch import Tensor

from ..grid import Copies
from ..partition import Partition
from .agreement import agree_same
from .copy import Copy
from .primitive import Primitive


class SumReduce(Primitive):
    """Sum the tensors of the workers of `P_x` that match a worker of `P_y`, there.

    The adjoint of `Broadcast` from `P_y` to `P_x`, with the same rule for shapes the other way round.

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
        self.copies = Copies(P_y.grid, P_x.grid, transpose_dest, transpose_src)
        self.identity = self.copies.is_identity
        self._takes_part(P_x, P_y, signature=f"transpose={transpose_src, transpose_dest}")

    def _distdl_module_setup(self, input: tuple[Tensor, ...]) -> None:
        transport, copies = self.P_x.transport, self.copies
        me = transport.rank
        teams = copies.teams_of(me)
        summand_of = copies.source_of(me) if me in copies.target else None
        groups = [(members, owner == summand_of) for owner, members in teams]
        shapes, agreed = agree_same(transport, self._team, self._says, input[0], groups)
        known = dict(zip((owner for owner, _ in teams), shapes, strict=True))
        shape = known[summand_of] if summand_of is not None else None
        back = Copy(transport, self._team, f"the adjoint of {self._says}", copies, shape, self._nothing, known.get(me))
        forth = back.adjoint
        forth.name = self._says
        self._plan(forth, agreed)
