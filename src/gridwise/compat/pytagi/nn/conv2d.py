"""Convolution: Gridwise's own."""

from gridwise.tagi.nn import conv2d as own

from .base_layer import BaseLayer


class Conv2d(BaseLayer, own.Conv2d):
    """See `gridwise.tagi.nn.Conv2d`."""
