"""Gridwise's own."""

from gridwise.nn.mixins.pooling_mixin import PoolingMixin as PoolingMixin
