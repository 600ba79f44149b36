"""Residual blocks: Gridwise's own."""

from gridwise.tagi.nn import resnet_block as own

from .base_layer import BaseLayer


class ResNetBlock(BaseLayer, own.ResNetBlock):
    """See `gridwise.tagi.nn.ResNetBlock`."""
