"""Recurrent layers: Gridwise's own, with pytagi's attributes."""

from gridwise.tagi.nn import lstm as own

from .base_layer import BaseLayer


class LSTM(BaseLayer):
    _own = own.LSTM
