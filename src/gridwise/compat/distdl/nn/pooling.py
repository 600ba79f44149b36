"""Pooling with DistDL's default: a stride of 1, not of the kernel."""

from __future__ import annotations

from typing import Any

from gridwise.errors import PartitionError
from gridwise.nn.layers import pooling
from gridwise.nn.layers.pooling import DistributedPoolingBase as DistributedPoolingBase
from gridwise.nn.windows.windowed_layer import Size
from gridwise.partition import Partition

from ...notes import note
from ..backends.mpi.buffer import check_manager
from ..backends.mpi.partition import plain


def _stride(layer: object, stride: Size | None) -> Size:
    if stride is None:
        note(
            f"distdl.nn.{type(layer).__name__}",
            "without `stride` it is 1, as DistDL's; gridwise.nn and torch take the kernel's size.",
        )
        return 1
    return stride


class _Pool:
    """DistDL's arguments."""

    def __init__(
        self,
        P_x: Partition,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        buffer_manager: object = None,
    ) -> None:
        check_manager(buffer_manager)
        made: Any = super().__init__
        made(plain(P_x), kernel_size, _stride(self, stride), padding, *self._dilation(dilation))

    def _dilation(self, dilation: Size) -> tuple[Size, ...]:
        """As an argument of Gridwise's layer."""
        return (dilation,)


class _Avg(_Pool):
    def _dilation(self, dilation: Size) -> tuple[Size, ...]:
        if set(dilation if not isinstance(dilation, int) else (dilation,)) != {1}:
            raise PartitionError(f"`dilation` (={dilation}) must be 1: torch's average pooling has none.")
        return ()


class DistributedMaxPool1d(_Pool, pooling.DistributedMaxPool1d):
    """Maximum pooling along one dim."""


class DistributedMaxPool2d(_Pool, pooling.DistributedMaxPool2d):
    """Maximum pooling along two dims."""


class DistributedMaxPool3d(_Pool, pooling.DistributedMaxPool3d):
    """Maximum pooling along three dims."""


class DistributedAvgPool1d(_Avg, pooling.DistributedAvgPool1d):
    """Average pooling along one dim."""


class DistributedAvgPool2d(_Avg, pooling.DistributedAvgPool2d):
    """Average pooling along two dims."""


class DistributedAvgPool3d(_Avg, pooling.DistributedAvgPool3d):
    """Average pooling along three dims."""
