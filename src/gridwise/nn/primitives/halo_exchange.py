"""Give each worker the rows around its block that its neighbours own.

forward  y = A x     block in, block with halos out; nothing is added at the edges of the global tensor
adjoint  A'          halo values go back to their owners and are added there
bytes    the halo, in one message per worker that owns a part of it
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...errors import PartitionError
from ...grid import Needs, route, whole_numbers
from ...partition import Partition
from ..engine.agreement import agree_layout
from ..engine.arguments import need_partition
from ..engine.carrier import Move
from .base import Primitive


class HaloExchange(Primitive):
    """Extend every block by halos; corners are filled too, and a halo may be wider than a neighbour's block.

    Parameters
    ----------
    P_x : a partition with as many axes as the tensor has dims
    halo_shape : for each dim, how many rows before and after the block
    recv_shape, send_shape : refused; DistDL's layer takes them, and fills the halos of a block that is padded already

    Notes
    -----
    Forward: each worker gets ``[start - before, stop + after)``, cut off at the edges of the global tensor. Adjoint: halo
    values return to their owners and are added. Bytes: the halo.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> gridwise.nn.HaloExchange(P_x, [(0, 0), (1, 1)])(torch.ones(1, 2))
    tensor([[1., 1.]])
    """

    def __init__(
        self,
        P_x: Partition,
        halo_shape: Sequence[Sequence[int]],
        recv_shape: object = None,
        send_shape: object = None,
    ) -> None:
        super().__init__()
        need_partition(type(self).__name__, "P_x", P_x)
        if recv_shape is not None or send_shape is not None:
            raise PartitionError(
                "HaloExchange takes no `recv_shape` and `send_shape`: unlike DistDL's, it takes blocks without room for "
                "halos and returns larger ones.\n  fix: HaloExchange(P_x, halo_shape)(block), without padding the block."
            )
        halo = tuple(whole_numbers(pair, "halo_shape") for pair in halo_shape)
        if len(halo) != P_x.dim or any(len(pair) != 2 or min(pair) < 0 for pair in halo):
            raise PartitionError(
                f"`halo_shape` (={halo}) needs a pair (before, after) of rows, not negative, for each of {P_x.dim} dims."
            )
        self.P_x, self.halo_shape = P_x, halo
        self._takes_part(P_x, signature=f"halo={halo}")

    def _distdl_module_setup(self, input: tuple[Tensor, ...]) -> None:
        transport = self.P_x.transport
        layout, agreed = agree_layout(transport, self._team, self._title, self.P_x.geometry, input[0])
        blocks = Needs.of_layout(layout)
        intervals = tuple(
            tuple((max(0, start - before), min(extent, stop + after)) for start, stop in line)
            for line, (before, after), extent in zip(
                blocks.intervals, self.halo_shape, layout.global_shape, strict=True
            )
        )
        plan = route(layout, Needs(layout.grid, intervals, blocks.wrap), transport.rank)
        self._plan(Move(transport, self._team, self._title, plan, self._nothing), agreed)
