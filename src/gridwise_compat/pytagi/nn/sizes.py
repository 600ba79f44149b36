"""The sizes that pytagi's layers show after a call: a layer without sizes of its own has those of the layer before."""

from __future__ import annotations

from collections.abc import Iterable

from gridwise.tagi.nn.base_layer import BaseLayer as GridwiseLayer
from gridwise.tagi.nn.layer_block import LayerBlock, ResNetBlock

BEFORE_AND_AFTER = {
    "input_size": "output_size", "in_width": "out_width", "in_height": "out_height", "in_channels": "out_channels"
}  # fmt: skip
NAMES = (*BEFORE_AND_AFTER, *BEFORE_AND_AFTER.values())
SHOWN = "_sizes_shown"

Sizes = dict[str, int]


def shown_size(layer: GridwiseLayer, name: str) -> int:
    """A size of a layer: its own, or the one noted in the last call."""
    return int(getattr(layer, name) or vars(layer).get(SHOWN, {}).get(name, 0))


def note_sizes(layers: Iterable[GridwiseLayer], before: Sizes | None = None) -> Sizes:
    """Note the sizes of these layers, one after another; returns those of the last."""
    sizes = before or dict.fromkeys(NAMES, 0)
    for layer in layers:
        sizes = _noted(layer, sizes)
    return sizes


def _noted(layer: GridwiseLayer, before: Sizes) -> Sizes:
    inner = (
        layer.layers if isinstance(layer, LayerBlock) else [layer.main_block] if isinstance(layer, ResNetBlock) else []
    )
    after = note_sizes(inner, before) if inner else None
    if isinstance(layer, ResNetBlock) and layer.shortcut is not None:
        note_sizes([layer.shortcut], before)
    sizes: Sizes = {}
    for name, out in BEFORE_AND_AFTER.items():
        sizes[name] = getattr(layer, name) or before[out]
        sizes[out] = getattr(layer, out) or (sizes[name] if after is None else after[out])
    vars(layer)[SHOWN] = sizes
    return sizes
