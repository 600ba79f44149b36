"""Layer norm: Gridwise's own."""

from gridwise.tagi.nn import layer_norm as own

from .base_layer import BaseLayer


class LayerNorm(BaseLayer, own.LayerNorm):
    """See `gridwise.tagi.nn.LayerNorm`."""
