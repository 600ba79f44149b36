"""Sum over the workers along chosen axes, and leave each of them its block of the sum.

forward  y = A x     the team's tensors are added; the dims in `axes` are cut into balanced blocks, one per worker
adjoint  A'          an all-gather
bytes    (p-1) blocks from each worker, p = product of the scattered axes
"""

from __future__ import annotations

from torch import Tensor

from ..engine.agreement import agree_layout
from ..engine.carrier import Move
from .all_gather import AlongAxes, gathering


class ReduceScatter(AlongAxes):
    """Sum along `axes` of `P_x` and scatter the sum along them; grid axis i cuts tensor dim i.

    Every worker passes the full extent of the dims in `axes`, and its block of the others.

    Parameters
    ----------
    P_x : a partition with as many axes as the tensor has dims
    axes : the axes to sum and scatter along

    Notes
    -----
    Forward: the adjoint of `AllGather`. Adjoint: `AllGather`. Bytes: ``p - 1`` blocks per worker. Half precision is
    summed in float32 and rounded once.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> gridwise.nn.ReduceScatter(P_x, axes=(0,))(torch.ones(1, 2))
    tensor([[1., 1.]])
    """

    sums = True

    def _distdl_module_setup(self, input: tuple[Tensor, ...]) -> None:
        transport = self.P_x.transport
        layout, agreed = agree_layout(transport, self._team, self._title, self.P_x.geometry, input[0], whole=self.axes)
        plan = gathering(layout, self.axes, transport.rank)
        back = Move(transport, self._team, f"the adjoint of {self._title}", plan, self._nothing)
        forth = back.adjoint
        forth.name = self._title
        self._plan(forth, agreed)
