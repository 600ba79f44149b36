"""Transposed convolution: Gridwise's own, with pytagi's attributes."""

from gridwise.tagi.nn import convtranspose2d as own

from .base_layer import BaseLayer


class ConvTranspose2d(BaseLayer):
    _own = own.ConvTranspose2d
