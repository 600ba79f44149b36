"""RMS norm: Gridwise's own, with pytagi's attributes."""

from gridwise.tagi.nn import layer_norm as own

from .base_layer import BaseLayer


class RMSNorm(BaseLayer):
    _own = own.RMSNorm
