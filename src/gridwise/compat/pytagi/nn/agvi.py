"""Noise that the network tells: Gridwise's own, with pytagi's attributes."""

from __future__ import annotations

from typing import Any

from gridwise.tagi.nn import agvi as own

from .base_layer import BaseLayer


class AGVI(BaseLayer):
    """`AGVI(activation_layer, overfit_mu, agvi)`, and the later `AGVI(odd_layer, even_layer, overfit_mu, agvi)`."""

    _own = own.AGVI

    def __init__(self, activation_layer: Any = None, *rest: Any, **options: Any) -> None:
        odd = options.pop("odd_layer", activation_layer)
        super().__init__(odd, *((None, *rest) if rest and isinstance(rest[0], bool) else rest), **options)
