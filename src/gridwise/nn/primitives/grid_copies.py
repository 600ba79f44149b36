"""What `Broadcast` and `SumReduce` share: copies between two grids, and the same copies in reverse."""

from __future__ import annotations

from torch import Tensor

from ...grid import Copies
from ...partition import Partition
from ..engine.agreement import agree_same
from ..engine.copy_and_sum import Copy
from .base import Primitive


class GridCopy(Primitive):
    """A copy from one grid to another, or its adjoint. `P_x` has the sources, unless the layer is `backwards`."""

    sums = True
    backwards = False

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
        if self.backwards:
            self.copies = Copies(P_y.geometry, P_x.geometry, transpose_dest, transpose_src)
        else:
            self.copies = Copies(P_x.geometry, P_y.geometry, transpose_src, transpose_dest)
        self.identity = self.copies.is_identity
        self._takes_part(P_x, P_y, signature=f"transpose={transpose_src, transpose_dest}")

    def _distdl_module_setup(self, input: tuple[Tensor, ...]) -> None:
        transport, copies = self.P_x.transport, self.copies
        me, teams = transport.rank, copies.teams_of(transport.rank)
        copied_from = copies.source_of(me) if me in copies.target else None
        brings = copied_from if self.backwards else me  # the owner of the team to which this worker contributes
        groups = [(members, owner == brings) for owner, members in teams]
        shapes, agreed = agree_same(transport, self._team, self._title, input[0], groups)
        known = dict(zip((owner for owner, _ in teams), shapes, strict=True))
        copied = None if copied_from is None else known[copied_from]
        forth = Copy(transport, self._team, self._title, copies, copied, self._nothing, known.get(me))
        if not self.backwards:
            return self._plan(forth, agreed)
        back = forth.adjoint
        forth.name, back.name = f"the adjoint of {self._title}", self._title
        return self._plan(back, agreed)
