"""Pooling: Gridwise's own."""

from gridwise.tagi.nn import pooling as own

from .base_layer import BaseLayer


class AvgPool2d(BaseLayer, own.AvgPool2d):
    """See `gridwise.tagi.nn.AvgPool2d`."""


class MaxPool2d(BaseLayer, own.MaxPool2d):
    """See `gridwise.tagi.nn.MaxPool2d`."""
