"""Affine layers: Gridwise's own."""

from gridwise.tagi.nn import linear as own

from .base_layer import BaseLayer


class Linear(BaseLayer, own.Linear):
    """See `gridwise.tagi.nn.Linear`."""
