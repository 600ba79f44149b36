"""Embedding: Gridwise's own."""

from gridwise.tagi.nn import embedding as own

from .base_layer import BaseLayer


class Embedding(BaseLayer, own.Embedding):
    """See `gridwise.tagi.nn.Embedding`."""
