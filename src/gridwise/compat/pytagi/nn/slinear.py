"""Affine layers that are smoothed: Gridwise's own, with pytagi's attributes."""

from gridwise.tagi.nn import slinear as own

from .base_layer import BaseLayer


class SLinear(BaseLayer):
    _own = own.SLinear
