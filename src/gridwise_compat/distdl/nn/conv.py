"""DistDL's convolutions: Gridwise's layers with DistDL's argument orders.

DistributedFeatureConv{1,2,3}d      space is cut
DistributedChannelConv{1,2,3}d      channels are cut
DistributedGeneralConv{1,2,3}d      both
DistributedConv{1,2,3}d             one of these, chosen by the partitions
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from gridwise.errors import PartitionError, UnsupportedError
from gridwise.nn.layers import conv
from gridwise.nn.layers.conv_base import Conv
from gridwise.nn.windows.windowed_layer import Size
from gridwise.partition import Partition

from ..backends.mpi.buffer import check_manager
from ..backends.mpi.partition import plain
from .mixins import ConvMixin, HaloMixin
from .module import WindowedModule
from .root_parameters import RootParameters, own_generators


class DistributedFeatureConvBase(RootParameters, WindowedModule, HaloMixin, ConvMixin, Conv):
    """Only space is cut, by `P_x`; the first worker owns weight and bias."""

    def __init__(
        self,
        P_x: Partition,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        padding_mode: str = "zeros",
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        buffer_manager: object = None,
    ) -> None:
        manager, P = check_manager(buffer_manager), plain(P_x)
        if P.dim > 1 and P.geometry.shape[1] != 1:
            raise PartitionError(
                f"{type(self).__name__}: `P_x` (={P.geometry.shape}) must not cut the channels.\n"
                "  fix: gridwise.nn.DistributedConv takes such a partition."
            )
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode
        with own_generators(self):
            super().__init__(P, *sizes)
        self._hide()
        self.serial, self.buffer_manager = P.size == 1, manager


class DistributedGeneralConvBase(RootParameters, WindowedModule, HaloMixin, ConvMixin, Conv):
    """Channels are cut, and space too if `P_w` cuts it; the first worker that uses a block of the weight owns it."""

    def __init__(
        self,
        P_x: Partition,
        P_y: Partition,
        P_w: Partition,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        padding_mode: str = "zeros",
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        buffer_manager: object = None,
    ) -> None:
        manager = check_manager(buffer_manager)
        if groups != 1:
            raise UnsupportedError(
                f"{type(self).__name__}: `groups` (={groups}) is not offered: DistDL's layer gives each worker all groups of "
                "its part of the channels, which is not torch's convolution.\n"
                "  fix: gridwise.nn.DistributedConv with P_y and P_w is torch's for any groups."
            )
        x, y, w = plain(P_x), plain(P_y), plain(P_w)
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode
        with own_generators(self):
            super().__init__(x, *sizes, P_y=y, P_w=w)
        self._hide()
        parameters: dict[str, Any] = {**self._parameters}
        self.stores_weight, self.stores_bias = (parameters.get(name) is not None for name in ("weight", "bias"))
        self.stores_bias, self.buffer_manager = self.stores_bias and self._owns("bias"), manager

    @property
    def conv_layer(self) -> torch.nn.Module:
        """This layer itself, whose weight and bias the worker computes with."""
        return self


DistributedChannelConvBase = DistributedGeneralConvBase


class _ByPartitions:
    """Makes a layer of the family that the given partitions imply."""

    dims: ClassVar[int]

    def __new__(
        cls,
        P_x: Partition,
        P_y: Partition | None = None,
        P_w: Partition | None = None,
        buffer_manager: object = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        partitions: tuple[Partition, ...] = (P_x,)
        family = "Feature"
        if P_y is not None or P_w is not None:
            if not isinstance(P_y, Partition) or not isinstance(P_w, Partition):
                raise PartitionError(
                    f"{cls.__name__}: give `P_x` alone, or `P_x`, `P_y` and `P_w`; the numbers of channels and so on by name."
                )
            partitions = P_x, P_y, P_w
            family = "Channel" if all(extent == 1 for extent in plain(P_w).geometry.shape[2:]) else "General"
        made = globals()[f"Distributed{family}Conv{cls.dims}d"]
        return made(*partitions, *args, buffer_manager=buffer_manager, **kwargs)


__all__ = []
for _dims in (1, 2, 3):
    for _family in ("Feature", "Channel", "General"):
        _name, _base = f"Distributed{_family}Conv{_dims}d", globals()[f"Distributed{_family}ConvBase"]
        globals()[_name] = type(_name, (_base, getattr(conv, _name)), {"__module__": __name__})
        __all__ += [_name]
    _name = f"DistributedConv{_dims}d"
    globals()[_name] = type(_name, (_ByPartitions,), {"__module__": __name__, "dims": _dims})
    __all__ += [_name]
