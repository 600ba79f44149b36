"""Recurrent layers: Gridwise's own."""

from gridwise.tagi.nn import lstm as own

from .base_layer import BaseLayer


class LSTM(BaseLayer, own.LSTM):
    """See `gridwise.tagi.nn.LSTM`."""
