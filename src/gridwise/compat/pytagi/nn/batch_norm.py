"""Batch norm: Gridwise's own."""

from gridwise.tagi.nn import batch_norm as own

from .base_layer import BaseLayer


class BatchNorm2d(BaseLayer, own.BatchNorm2d):
    """See `gridwise.tagi.nn.BatchNorm2d`."""
