"""Layers in a row: Gridwise's own."""

from gridwise.tagi.nn import layer_block as own

from .base_layer import BaseLayer


class LayerBlock(BaseLayer, own.LayerBlock):
    """See `gridwise.tagi.nn.LayerBlock`."""
