"""The halos of a padded block, filled in place."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..partition import MPICartesianPartition


class HaloExchangeFunction:
    """Called by `apply`, like a function of autograd; `slices` are those of a `HaloExchange`."""

    @staticmethod
    def apply(
        input: Tensor,
        P_x: MPICartesianPartition,
        slices: Sequence[Sequence[Sequence[slice]]] | None,
        buffers: object = None,
        neighbor_ranks: object = None,
    ) -> Tensor:
        from ....nn.halo_exchange import HaloExchange

        widths = None
        if P_x.active and slices is not None:
            widths = [
                [len(range(*ghost[d].indices(n))) for ghost in (of[1], of[3])]
                for d, (of, n) in enumerate(zip(slices, input.shape, strict=True))
            ]
        return HaloExchange(P_x, widths)(input)
