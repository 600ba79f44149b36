"""Affine layers that are smoothed: Gridwise's own."""

from gridwise.tagi.nn import slinear as own

from .base_layer import BaseLayer


class SLinear(BaseLayer, own.SLinear):
    """See `gridwise.tagi.nn.SLinear`."""
