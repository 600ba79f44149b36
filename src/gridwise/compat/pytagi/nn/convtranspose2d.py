"""Transposed convolution: Gridwise's own."""

from gridwise.tagi.nn import convtranspose2d as own

from .base_layer import BaseLayer


class ConvTranspose2d(BaseLayer, own.ConvTranspose2d):
    """See `gridwise.tagi.nn.ConvTranspose2d`."""
