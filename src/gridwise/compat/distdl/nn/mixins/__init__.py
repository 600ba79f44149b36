"""Index arithmetic of windowed layers, for those who write their own."""

from .conv_mixin import ConvMixin as ConvMixin
from .halo_mixin import HaloMixin as HaloMixin
from .pooling_mixin import PoolingMixin as PoolingMixin
