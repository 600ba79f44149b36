"""Index arithmetic of windowed layers, for users who write their own."""

from gridwise.nn.mixins.conv_mixin import ConvMixin as ConvMixin
from gridwise.nn.mixins.pooling_mixin import PoolingMixin as PoolingMixin

from .halo_mixin import HaloMixin as HaloMixin
