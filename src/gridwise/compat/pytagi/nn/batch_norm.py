"""Batch norm: Gridwise's own, with pytagi's attributes."""

from gridwise.tagi.nn import batch_norm as own

from .base_layer import BaseLayer


class BatchNorm2d(BaseLayer):
    _own = own.BatchNorm2d
