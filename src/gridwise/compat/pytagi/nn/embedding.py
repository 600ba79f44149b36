"""Embedding: Gridwise's own, with pytagi's attributes."""

from gridwise.tagi.nn import embedding as own

from .base_layer import BaseLayer


class Embedding(BaseLayer):
    _own = own.Embedding
