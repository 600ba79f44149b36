"""Index arithmetic of windowed layers under DistDL's names, for those who subclass with it."""

from .conv_mixin import ConvMixin as ConvMixin
from .pooling_mixin import PoolingMixin as PoolingMixin
