"""Recurrent layers that are smoothed: Gridwise's own, with pytagi's attributes."""

from gridwise.tagi.nn import slstm as own

from .base_layer import BaseLayer


class SLSTM(BaseLayer):
    _own = own.SLSTM
