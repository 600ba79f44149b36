"""Upsampling with DistDL's arguments: 'linear' for any number of dims, and `size` including batch and channels."""

from __future__ import annotations

from collections.abc import Sequence

from gridwise.errors import PartitionError, UnsupportedError
from gridwise.nn.layers.upsampling import DistributedUpsample as GridwiseUpsample
from gridwise.partition import Partition

from ...notes import note
from ..backends.mpi.buffer import check_manager
from ..backends.mpi.partition import plain
from .mixins.interpolate_mixin import InterpolateMixin
from .module import WindowedModule

LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}


class DistributedUpsample(WindowedModule, InterpolateMixin, GridwiseUpsample):
    """Interpolation of ``(batch, channel, *space)`` on `P_x` to `size`, or by `scale_factor`."""

    def __init__(
        self,
        P_x: Partition,
        buffer_manager: object = None,
        size: Sequence[int] | None = None,
        scale_factor: float | None = None,
        mode: str | None = None,
        align_corners: bool = False,
    ) -> None:
        manager = check_manager(buffer_manager)
        if (size is None) == (scale_factor is None):
            raise PartitionError(
                f"DistributedUpsample needs exactly one of `size` (={size}) and `scale_factor` (={scale_factor})."
            )
        P = plain(P_x)
        if mode is None:
            mode = "linear"
            note(
                "distdl.nn.DistributedUpsample",
                "without `mode` it is 'linear', as in DistDL; gridwise.nn and torch take 'nearest'.",
            )
        if mode not in ("nearest", "linear"):
            raise UnsupportedError(f"`mode` (={mode!r}) must be 'nearest' or 'linear'; gridwise.nn has 'bicubic'.")
        if size is not None and len(size) != P.dim:
            raise PartitionError(f"`size` (={tuple(size)}) is that of all {P.dim} dims, batch and channels included.")
        space = None if size is None else tuple(int(n) for n in size)[2:]
        kind, corners = (mode, None) if mode == "nearest" else (LINEAR.get(P.dim, mode), align_corners)
        super().__init__(P, space, scale_factor, kind, corners)
        self.buffer_manager = manager
