"""Sum a tensor over chosen axes of its grid, and leave the sum on every worker.

forward  y = A x     y on each worker = sum of x over the workers that differ from it only along `axes`
adjoint  A' = A      the operator is symmetric, so backward is forward
bytes    2 (p-1)/p of the block per worker, p = product of the summed axes
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ...errors import PartitionError
from ...grid import resolve_axes
from ...partition import Partition
from ..engine.agreement import agree_same
from ..engine.copy_and_sum import AllSum
from .base import Primitive


class AllSumReduce(Primitive):
    """Sum over the workers along `axes_reduce` (or along all but `axes_keep`) of `P_x`; each of them gets the result.

    The sum is bitwise the same on all workers of a team and from run to run. Half precision is summed in float32 and
    rounded once. The result is never the input itself, even where there is nothing to sum.

    Parameters
    ----------
    P_x : the partition, with or without a topology
    axes_reduce, axes_keep : axes of the grid; exactly one of the two is given. It may be empty.

    Notes
    -----
    Forward: ``y_j = sum_k x_k`` over the team of worker j. Adjoint: the same. Bytes: ``2 (p - 1) / p`` of the block.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> gridwise.nn.AllSumReduce(P_x, axes_reduce=(0,))(torch.ones(2))
    tensor([1., 1.])
    """

    sums = True

    def __init__(
        self, P_x: Partition, axes_reduce: Iterable[int] | None = None, axes_keep: Iterable[int] | None = None
    ) -> None:
        super().__init__()
        if (axes_reduce is None) == (axes_keep is None):
            raise PartitionError(
                f"AllSumReduce needs exactly one of `axes_reduce` (={axes_reduce}) and `axes_keep` (={axes_keep})."
            )
        if axes_reduce is not None:
            self.axes_reduce = resolve_axes(P_x.dim, axes_reduce, "axes_reduce")
            self.axes_keep = tuple(axis for axis in range(P_x.dim) if axis not in self.axes_reduce)
        else:
            assert axes_keep is not None
            self.axes_keep = resolve_axes(P_x.dim, axes_keep, "axes_keep")
            self.axes_reduce = tuple(axis for axis in range(P_x.dim) if axis not in self.axes_keep)
        self.P_x = P_x
        self.identity = all(P_x.shape[axis] == 1 for axis in self.axes_reduce)
        self._takes_part(P_x, signature=f"axes_reduce={self.axes_reduce}")

    def _distdl_module_setup(self, input: tuple[Tensor, ...]) -> None:
        transport = self.P_x.transport
        team = tuple(sorted(self.P_x.geometry.team_along(transport.rank, self.axes_reduce)))
        _, agreed = agree_same(transport, self._team, self._title, input[0], [(team, True)])
        self._plan(AllSum(transport, self._team, self._title, team), agreed)
