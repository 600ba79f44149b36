"""Layer norm: Gridwise's own, with pytagi's attributes."""

from gridwise.tagi.nn import layer_norm as own

from .base_layer import BaseLayer


class LayerNorm(BaseLayer):
    _own = own.LayerNorm
