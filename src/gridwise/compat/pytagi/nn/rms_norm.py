"""RMS norm: Gridwise's own."""

from gridwise.tagi.nn import layer_norm as own

from .base_layer import BaseLayer


class RMSNorm(BaseLayer, own.RMSNorm):
    """See `gridwise.tagi.nn.RMSNorm`."""
