"""Convolutions by DistDL's names: `DistributedGeneralConv{1,2,3}d`."""

from __future__ import annotations

from gridwise.nn.layers import conv

from .conv_families import OnChannels


class DistributedGeneralConv1d(OnChannels, conv.DistributedGeneralConv1d):
    """See `OnChannels`."""


class DistributedGeneralConv2d(OnChannels, conv.DistributedGeneralConv2d):
    """See `OnChannels`."""


class DistributedGeneralConv3d(OnChannels, conv.DistributedGeneralConv3d):
    """See `OnChannels`."""
