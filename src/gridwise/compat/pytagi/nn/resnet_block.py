"""Residual blocks: Gridwise's own, with pytagi's attributes."""

from __future__ import annotations

from gridwise.tagi.nn import resnet_block as own

from .base_layer import BaseLayer, in_front_of


class ResNetBlock(BaseLayer):
    _own = own.ResNetBlock

    @property
    def main_block(self) -> BaseLayer:
        """The first branch."""
        return in_front_of(self._layer.main_block)

    @property
    def shortcut(self) -> BaseLayer | None:
        """The second branch; None where it is the input itself."""
        return None if self._layer.shortcut is None else in_front_of(self._layer.shortcut)

    def init_shortcut_state(self) -> None:
        """Nothing is left to do: there are no buffers that would have to exist before the first call."""

    init_shortcut_delta_state = init_input_buffer = init_shortcut_state
