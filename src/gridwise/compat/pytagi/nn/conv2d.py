"""Convolution: Gridwise's own, with pytagi's attributes."""

from gridwise.tagi.nn import conv2d as own

from .base_layer import BaseLayer


class Conv2d(BaseLayer):
    _own = own.Conv2d
