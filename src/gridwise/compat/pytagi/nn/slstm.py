"""Recurrent layers that are smoothed: Gridwise's own."""

from gridwise.tagi.nn import slstm as own

from .base_layer import BaseLayer


class SLSTM(BaseLayer, own.SLSTM):
    """See `gridwise.tagi.nn.SLSTM`."""
