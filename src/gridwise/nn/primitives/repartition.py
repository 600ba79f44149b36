"""Move a tensor from the blocks of one grid to the blocks of another.

forward  y = A x     a permutation: every element goes from its owner to its new owner
adjoint  A' = A^-1   the same movement back
bytes    the part of a worker's block that moves to another worker
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...errors import PartitionError
from ...grid import Layout, Needs, route
from ...grid.cuts import checked_cuts
from ...partition import Partition
from ..engine.agreement import agree_layout
from ..engine.arguments import need_partition
from ..engine.carrier import Move
from .base import Primitive


class Repartition(Primitive):
    """Move a tensor from `P_x` to `P_y`, whatever its blocks on `P_x`.

    Parameters
    ----------
    P_x, P_y : partitions with as many axes as the tensor has dims; their workers may coincide, overlap or differ
    preserve_batch : a worker without output returns shape ``(batch, 0)`` instead of ``(0,)``
    cuts : cut points of the output along each dim; None, for all dims or for one of them, means balanced blocks

    Notes
    -----
    Forward: blocks of `P_x` to blocks of `P_y`. Adjoint: back. Bytes: what changes worker, in one message per peer.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> gridwise.nn.Repartition(P_x, P_x)(torch.ones(1, 2))
    tensor([[1., 1.]])
    """

    def __init__(
        self,
        P_x: Partition,
        P_y: Partition,
        preserve_batch: bool = True,
        cuts: Sequence[Sequence[int] | None] | None = None,
    ) -> None:
        super().__init__()
        need_partition(type(self).__name__, "P_x", P_x)
        need_partition(type(self).__name__, "P_y", P_y)
        if P_x.dim != P_y.dim:
            raise PartitionError(
                f"Repartition needs grids with the same number of axes, got {P_x.shape} and {P_y.shape}.\n"
                "  fix: use 1 for the axes of dims that are not cut."
            )
        if cuts is not None and not isinstance(cuts, Sequence):
            raise PartitionError(
                f"Repartition: `cuts` (={cuts!r}) must be a list of cut points for each dim.\n"
                "  fix: leave out a buffer manager, which DistDL has in this place: torch manages memory."
            )
        if cuts is not None and len(cuts) != P_y.dim:
            raise PartitionError(f"`cuts` needs one entry for each of {P_y.dim} dims, got {len(cuts)}.")
        self.P_x, self.P_y, self.preserve_batch = P_x, P_y, preserve_batch
        self.cuts = cuts and tuple(
            line if line is None else checked_cuts(line, blocks) for line, blocks in zip(cuts, P_y.shape, strict=True)
        )
        self._takes_part(P_x, P_y, signature=f"cuts={self.cuts}" if self.cuts else "")

    def _distdl_module_setup(self, input: tuple[Tensor, ...]) -> None:
        transport = self.P_x.transport
        source, agreed = agree_layout(transport, self._team, self._title, self.P_x.geometry, input[0])
        plan = route(source, Needs.of_layout(self._target(source)), transport.rank)
        self._plan(Move(transport, self._team, self._title, plan, self._nothing), agreed)

    def _target(self, source: Layout) -> Layout:
        """The blocks of the output for an input in these blocks."""
        shape = source.global_shape
        target = Layout.balanced(self.P_y.geometry, shape)
        if self.cuts:
            target = Layout(self.P_y.geometry, tuple(map(_chosen, self.cuts, target.cuts)))
            if target.global_shape != shape:
                raise PartitionError(
                    f"{self._title}: `cuts` describe a tensor of shape {target.global_shape}, the input has {shape}.\n"
                    "  fix: let the last cut of each dim be its extent."
                )
        return target


def _chosen(wish: Sequence[int] | None, balanced: tuple[int, ...]) -> tuple[int, ...]:
    return balanced if wish is None else tuple(wish)
