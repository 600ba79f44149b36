"""DistDL's argument orders of convolutions, in front of Gridwise's layers."""

from __future__ import annotations

from typing import Any

import torch

from gridwise.errors import PartitionError, UnsupportedError
from gridwise.nn.layers.conv_base import Conv
from gridwise.nn.windows.windowed_layer import Size
from gridwise.partition import Partition

from ..backends.mpi.buffer import check_manager
from ..backends.mpi.partition import plain
from .root_parameters import RootParameters, own_generator


class OnFeatures(RootParameters, Conv):
    """Only space is cut, by `P_x`; weight and bias are the first worker's."""

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
        check_manager(buffer_manager)
        of = plain(P_x)
        if of.dim > 1 and of.grid.shape[1] != 1:
            raise PartitionError(
                f"{type(self).__name__}: `P_x` (={of.grid.shape}) must not cut the channels.\n"
                "  fix: gridwise.nn.DistributedConv takes such a partition."
            )
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode
        with own_generator():
            super().__init__(of, *sizes)
        self._hide()
        self.serial = of.size == 1


class OnChannels(RootParameters, Conv):
    """Channels are cut, and space too if `P_w` cuts it; each block of the weight is on the first worker that uses it."""

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
        check_manager(buffer_manager)
        if groups != 1:
            raise UnsupportedError(
                f"{type(self).__name__}: `groups` (={groups}) is not offered: DistDL's layer gives each worker all groups of "
                "its part of the channels, which is not torch's convolution.\n"
                "  fix: gridwise.nn.DistributedConv with P_y and P_w is torch's for any groups."
            )
        x, y, w = plain(P_x), plain(P_y), plain(P_w)
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode
        with own_generator():
            super().__init__(x, *sizes, P_y=y, P_w=w)
        self._hide()
        held: dict[str, Any] = {**self._parameters}
        self.stores_weight, self.stores_bias = (held.get(name) is not None for name in ("weight", "bias"))
        self.stores_bias = self.stores_bias and self._owns("bias")

    @property
    def conv_layer(self) -> torch.nn.Module:
        """What a worker computes with: this layer's own weight and bias."""
        return self


def family(feature: Any, channel: Any, general: Any) -> Any:
    """`DistributedConv{1,2,3}d`: the class that the partitions ask for."""

    class DistributedConv:
        def __new__(
            cls,
            P_x: Partition,
            P_y: Partition | None = None,
            P_w: Partition | None = None,
            buffer_manager: object = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            if P_y is None and P_w is None:
                return feature(P_x, *args, buffer_manager=buffer_manager, **kwargs)
            if not isinstance(P_y, Partition) or not isinstance(P_w, Partition):
                raise PartitionError(
                    f"{cls.__name__}: give `P_x` alone, or `P_x`, `P_y` and `P_w`; the numbers of channels and so on by name."
                )
            which = channel if all(extent == 1 for extent in plain(P_w).grid.shape[2:]) else general
            return which(P_x, P_y, P_w, *args, buffer_manager=buffer_manager, **kwargs)

    return DistributedConv
