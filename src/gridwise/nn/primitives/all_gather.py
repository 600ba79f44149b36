"""Concatenate the blocks along chosen axes, on every worker along them.

forward  y = A x     each worker gets the full extent of the dims in `axes`, and keeps its block of the others
adjoint  A'          a reduce-scatter: every worker's copy of a block goes back to its owner and is added
bytes    (p-1) blocks to each worker, p = product of the gathered axes
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ...grid import Layout, Needs, Route, resolve_axes, route
from ...partition import Partition
from ..engine.agreement import agree_layout
from ..engine.carrier import Move
from .base import Primitive


class AlongAxes(Primitive):
    """What `AllGather` and `ReduceScatter` share: the axes along which workers have full extents after or before."""

    def __init__(self, P_x: Partition, axes: Iterable[int]) -> None:
        super().__init__()
        self.P_x = P_x
        self.axes = resolve_axes(P_x.dim, axes)
        self._takes_part(P_x, signature=f"axes={self.axes}")


class AllGather(AlongAxes):
    """Gather along `axes` of `P_x`; grid axis i cuts tensor dim i.

    Parameters
    ----------
    P_x : a partition with as many axes as the tensor has dims
    axes : the axes along which blocks are concatenated; blocks may be uneven or empty

    Notes
    -----
    Forward: concatenation over the workers along `axes`. Adjoint: `ReduceScatter`. Bytes: ``p - 1`` blocks per worker.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> gridwise.nn.AllGather(P_x, axes=(0,))(torch.ones(1, 2))
    tensor([[1., 1.]])
    """

    def _distdl_module_setup(self, input: tuple[Tensor, ...]) -> None:
        transport = self.P_x.transport
        layout, agreed = agree_layout(transport, self._team, self._title, self.P_x.geometry, input[0])
        plan = gathering(layout, self.axes, transport.rank)
        self._plan(Move(transport, self._team, self._title, plan, self._nothing), agreed)


def gathering(layout: Layout, axes: tuple[int, ...], rank: int) -> Route:
    """The route by which every worker gets the full extent of the dims in `axes`."""
    blocks = Needs.of_layout(layout)
    intervals = tuple(
        ((0, layout.global_shape[d]),) * len(line) if d in axes else line for d, line in enumerate(blocks.intervals)
    )
    return route(layout, Needs(layout.grid, intervals, blocks.wrap), rank)
