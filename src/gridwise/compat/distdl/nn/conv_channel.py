"""Convolutions by DistDL's names: `DistributedChannelConv{1,2,3}d`."""

from __future__ import annotations

from gridwise.nn.layers import conv

from .conv_families import OnChannels


class DistributedChannelConv1d(OnChannels, conv.DistributedChannelConv1d):
    """See `OnChannels`."""


class DistributedChannelConv2d(OnChannels, conv.DistributedChannelConv2d):
    """See `OnChannels`."""


class DistributedChannelConv3d(OnChannels, conv.DistributedChannelConv3d):
    """See `OnChannels`."""
