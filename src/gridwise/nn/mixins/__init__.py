"""Index arithmetic of windowed layers under DistDL's names, for code that subclasses with it."""

from .conv_mixin import ConvMixin as ConvMixin
from .pooling_mixin import PoolingMixin as PoolingMixin
