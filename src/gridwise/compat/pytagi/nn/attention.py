"""Attention: Gridwise's own."""

from gridwise.tagi.nn import attention as own

from .base_layer import BaseLayer


class MultiheadAttention(BaseLayer, own.MultiheadAttention):
    """See `gridwise.tagi.nn.MultiheadAttention`."""
