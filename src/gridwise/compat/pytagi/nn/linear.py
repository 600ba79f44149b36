"""Affine layers: Gridwise's own, with pytagi's attributes."""

from gridwise.tagi.nn import linear as own

from .base_layer import BaseLayer


class Linear(BaseLayer):
    _own = own.Linear
