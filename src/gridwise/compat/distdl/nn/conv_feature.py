"""Convolutions by DistDL's names: `DistributedFeatureConv{1,2,3}d`."""

from __future__ import annotations

from gridwise.nn.layers import conv

from .conv_families import OnFeatures


class DistributedFeatureConv1d(OnFeatures, conv.DistributedFeatureConv1d):
    """See `OnFeatures`."""


class DistributedFeatureConv2d(OnFeatures, conv.DistributedFeatureConv2d):
    """See `OnFeatures`."""


class DistributedFeatureConv3d(OnFeatures, conv.DistributedFeatureConv3d):
    """See `OnFeatures`."""
