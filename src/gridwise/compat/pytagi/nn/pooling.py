"""Pooling: Gridwise's own, with pytagi's attributes."""

from gridwise.tagi.nn import pooling as own

from .base_layer import BaseLayer


class AvgPool2d(BaseLayer):
    _own = own.AvgPool2d


class MaxPool2d(BaseLayer):
    _own = own.MaxPool2d
