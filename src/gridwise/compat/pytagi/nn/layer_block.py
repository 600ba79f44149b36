"""Layers in a row: Gridwise's own, with pytagi's attributes."""

from __future__ import annotations

from gridwise.tagi.nn import layer_block as own

from .base_layer import BaseLayer, in_front_of


class LayerBlock(BaseLayer):
    _own = own.LayerBlock

    @property
    def layers(self) -> list[BaseLayer]:
        """The layers, in forward order."""
        return [in_front_of(layer) for layer in self._layer.layers]
