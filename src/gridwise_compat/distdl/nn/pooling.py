"""Pooling with DistDL's default stride of 1; torch's default is the kernel size."""

from __future__ import annotations

from typing import Any

from gridwise.errors import PartitionError
from gridwise.nn.layers import pooling
from gridwise.nn.windows.windowed_layer import Size
from gridwise.partition import Partition

from ...notes import note
from ..backends.mpi.buffer import check_manager
from ..backends.mpi.partition import plain
from .mixins import HaloMixin, PoolingMixin
from .module import WindowedModule


class DistributedPoolingBase(WindowedModule, HaloMixin, PoolingMixin, pooling.DistributedPoolingBase):
    """The base class of pooling layers: DistDL's arguments."""

    has_dilation = True

    def __init__(
        self,
        P_x: Partition,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        buffer_manager: object = None,
    ) -> None:
        manager = check_manager(buffer_manager)
        if not self.has_dilation and set(dilation if not isinstance(dilation, int) else (dilation,)) != {1}:
            raise PartitionError(f"`dilation` (={dilation}) must be 1: torch's average pooling has none.")
        if stride is None:
            note(
                f"distdl.nn.{type(self).__name__}",
                "without `stride` it is 1, as in DistDL; gridwise.nn and torch take the kernel's size.",
            )
        made: Any = super().__init__
        made(
            plain(P_x),
            kernel_size,
            1 if stride is None else stride,
            padding,
            *([dilation] if self.has_dilation else []),
        )
        self.buffer_manager = manager


DistributedPoolBase = DistributedPoolingBase

__all__ = []
for _kind in ("Max", "Avg"):
    for _dims in (1, 2, 3):
        _name = f"Distributed{_kind}Pool{_dims}d"
        _attributes = {"__module__": __name__, "has_dilation": _kind == "Max"}
        globals()[_name] = type(_name, (DistributedPoolingBase, getattr(pooling, _name)), _attributes)
        __all__ += [_name]
