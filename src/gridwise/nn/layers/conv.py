"""The public classes of torch's convolutions on a grid; `conv_base` has the implementation.

    only P_x given            `DistributedFeatureConv{1,2,3}d`
    P_y and P_w, no space cut `DistributedChannelConv{1,2,3}d`
    P_y and P_w, space cut    `DistributedGeneralConv{1,2,3}d`

`DistributedConv{1,2,3}d` is the name to use: it creates an instance of the family that its partitions call for.
"""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

from ...errors import PartitionError
from ...partition import Partition
from ..docstrings import documented_like
from ..engine.arguments import need_first_partition
from .conv_base import Conv


class AnyConv(ABCMeta):
    """The class of `DistributedConv{1,2,3}d`: a call makes a layer of the family that its partitions call for.

    The classes of the families count as subclasses (`register`), without inheriting from them.
    """

    families: tuple[type[Conv], type[Conv], type[Conv]]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "families" not in cls.__dict__:  # a subclass by the user
            return super().__call__(*args, **kwargs)
        need_first_partition(cls, args, kwargs)
        return _family_of(cls, kwargs.get("P_y"), kwargs.get("P_w"))(*args, **kwargs)


class DistributedConv2d(Conv, metaclass=AnyConv):
    """`torch.nn.Conv2d` on a grid: the same result for every argument, size and grid, or an error.

    Parameters
    ----------
    P_x : the partition of the input, axes (batch, channel, height, width), or without the batch
    in_channels, ..., padding_mode : as in torch; `padding` and `padding_mode` refer to the *global* tensor
    P_y : the partition of the output, (1, p_co, height, width); only together with `P_w`
    P_w : the partition of the work, (p_co, p_ci, height, width): both kinds of channels and space may be cut
    device, dtype : device and dtype of the parameters

    Shape
    -----
    - input: ``(batch, in_channels, height, width)``, or without the batch; this worker's block of it
    - output: ``(batch, out_channels, height, width)``, with the extents that torch's layer makes; a block of it

    Notes
    -----
    Without `P_w` the output is on `P_x` in balanced blocks, with channels cut along axis 1, and each worker holds the
    weight for its output channels. The input may come in any blocks. A worker without a part of the input passes a
    zero-volume tensor, and one without a part of the output gets one.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> layer = gridwise.nn.DistributedConv2d(P_x, 3, 8, kernel_size=3, padding=1, padding_mode="circular")
    >>> layer(torch.ones(2, 3, 8, 8)).shape
    torch.Size([2, 8, 8, 8])
    """

    dims = 2


@documented_like(DistributedConv2d)
class DistributedConv1d(Conv, metaclass=AnyConv):
    dims = 1


@documented_like(DistributedConv2d)
class DistributedConv3d(Conv, metaclass=AnyConv):
    dims = 3


@documented_like(DistributedConv2d)
class DistributedFeatureConv2d(Conv):
    """`DistributedConv2d` without `P_w`: batch, output channels and space are cut, by `P_x`."""

    dims, splits_sums = 2, False


@documented_like(DistributedFeatureConv2d)
class DistributedFeatureConv1d(Conv):
    dims, splits_sums = 1, False


@documented_like(DistributedFeatureConv2d)
class DistributedFeatureConv3d(Conv):
    dims, splits_sums = 3, False


@documented_like(DistributedConv2d)
class DistributedChannelConv2d(Conv):
    """`DistributedConv2d` with `P_w`: output and input channels are cut.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> layer = gridwise.nn.DistributedChannelConv2d(P_x, 3, 8, 3, padding=1, P_y=P_x, P_w=P_x)
    >>> layer(torch.ones(2, 3, 8, 8)).shape
    torch.Size([2, 8, 8, 8])
    """

    dims, splits_sums = 2, True


@documented_like(DistributedChannelConv2d)
class DistributedChannelConv1d(Conv):
    dims, splits_sums = 1, True


@documented_like(DistributedChannelConv2d)
class DistributedChannelConv3d(Conv):
    dims, splits_sums = 3, True


@documented_like(DistributedChannelConv2d)
class DistributedGeneralConv2d(Conv):
    """`DistributedConv2d` with `P_w`: output channels, input channels and space are cut."""

    dims, splits_sums = 2, True


@documented_like(DistributedGeneralConv2d)
class DistributedGeneralConv1d(Conv):
    dims, splits_sums = 1, True


@documented_like(DistributedGeneralConv2d)
class DistributedGeneralConv3d(Conv):
    dims, splits_sums = 3, True


for _whole, _families in {
    DistributedConv1d: (DistributedFeatureConv1d, DistributedChannelConv1d, DistributedGeneralConv1d),
    DistributedConv2d: (DistributedFeatureConv2d, DistributedChannelConv2d, DistributedGeneralConv2d),
    DistributedConv3d: (DistributedFeatureConv3d, DistributedChannelConv3d, DistributedGeneralConv3d),
}.items():
    _whole.families = _families
    for _family in _families:
        _whole.register(_family)


def _family_of(cls: AnyConv, P_y: Partition | None, P_w: Partition | None) -> type[Conv]:
    feature, channel, general = cls.families
    if P_y is None and P_w is None:
        return feature
    if P_y is None or P_w is None:
        missing = "P_y" if P_y is None else "P_w"
        raise PartitionError(
            f"{cls.__name__}: `{missing}` is missing: give `P_x` alone, or `P_x`, `P_y` and `P_w`.\n"
            "  fix: `P_y` is where the output goes, (1, p_co, *space), and `P_w` who computes, (p_co, p_ci, *space)."
        )
    return channel if all(extent == 1 for extent in P_w.shape[2:]) else general
