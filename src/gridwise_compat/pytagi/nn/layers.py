"""pytagi's layers: Gridwise's own, with pytagi's attributes; one module serves all of pytagi's module paths."""

from __future__ import annotations

from typing import Any

from gridwise.errors import UnsupportedError
from gridwise.tagi import nn as own

from .base_layer import BaseLayer, wrapped
from .data_struct import BaseDeltaStates as BaseDeltaStates
from .data_struct import BaseHiddenStates as BaseHiddenStates

SAME_ARGUMENTS = (
    "AvgPool2d", "BatchNorm2d", "ClosedFormSoftmax", "Conv2d", "ConvTranspose2d", "Embedding", "EvenExp", "Exp", "LSTM",
    "LayerNorm", "LeakyReLU", "Linear", "MaxPool2d", "MixtureReLU", "MixtureSigmoid", "MixtureTanh", "RMSNorm", "ReLU",
    "Remax", "SLSTM", "SLinear", "Sigmoid", "Softmax", "Softplus", "SplitActivation", "Tanh",
)  # fmt: skip
"""Layers with the same arguments as Gridwise's."""

__all__ = [*SAME_ARGUMENTS, "AGVI", "LayerBlock", "MultiheadAttention", "MultiheadAttentionV2", "ResNetBlock"]

for _name in SAME_ARGUMENTS:
    globals()[_name] = type(_name, (BaseLayer,), {"_wraps": getattr(own, _name), "__module__": __name__})


class AGVI(BaseLayer):
    """`AGVI(activation_layer, overfit_mu, agvi)`, and the later `AGVI(odd_layer, even_layer, overfit_mu, agvi)`."""

    _wraps = own.AGVI

    def __init__(self, activation_layer: object = None, *rest: Any, **options: Any) -> None:
        odd = options.pop("odd_layer", activation_layer)
        super().__init__(odd, *((None, *rest) if rest and isinstance(rest[0], bool) else rest), **options)


class LayerBlock(BaseLayer):
    _wraps = own.LayerBlock

    @property
    def layers(self) -> list[BaseLayer]:
        """The layers, in forward order."""
        return [wrapped(layer) for layer in self._layer.layers]


class ResNetBlock(BaseLayer):
    _wraps = own.ResNetBlock

    @property
    def main_block(self) -> BaseLayer:
        """The first branch."""
        return wrapped(self._layer.main_block)

    @property
    def shortcut(self) -> BaseLayer | None:
        """The second branch; None if it is the identity."""
        return None if self._layer.shortcut is None else wrapped(self._layer.shortcut)

    def init_shortcut_state(self) -> None:
        """Do nothing: no buffers need to exist before the first call."""

    init_shortcut_delta_state = init_input_buffer = init_shortcut_state


RELEASED = ("bias", "gain_weight", "gain_bias", "init_method")
NEWEST = (
    "seq_len", "bias", "gain_weight", "gain_bias", "init_method", "pos_emb", "rope_theta", "max_seq_len", "use_causal_mask",
)  # fmt: skip


class MultiheadAttention(BaseLayer):
    """`(embed_dim, num_heads, num_kv_heads, bias, gain_weight, gain_bias, init_method)`, or the newest arguments.

    The newest source has `seq_len` before `bias`, and `pos_emb`, `rope_theta`, `max_seq_len` and `use_causal_mask` at
    the end; a fourth positional argument is `bias` if it is a bool. By default `init_method` is 'He' if one of the
    newest arguments is given, else 'Xavier'.
    """

    _wraps = own.MultiheadAttention

    def __init__(
        self, embed_dim: int, num_heads: int, num_kv_heads: int | None = None, *rest: Any, **options: Any
    ) -> None:
        names = RELEASED if rest and isinstance(rest[0], bool) else NEWEST
        given = {**dict(zip(names, rest, strict=False)), **options}
        if len(rest) > len(names) or not given.keys() <= {*NEWEST, "use_rope"}:
            raise TypeError(f"MultiheadAttention: takes {', '.join(NEWEST)}, not {sorted(given.keys() - set(NEWEST))}.")
        is_newest = bool(given.keys() - set(RELEASED) - {"use_rope", "rope_theta", "max_seq_len"})
        encoding = given.pop("pos_emb", "rope" if given.pop("use_rope", True) else "")
        if encoding not in ("rope", ""):
            raise UnsupportedError(
                f"MultiheadAttention: `pos_emb` (={encoding!r}) is not available.\n"
                "  fix: pos_emb='rope', or '' and positions added to the input."
            )
        given.pop("max_seq_len", None)  # the size of a table that is not needed here
        given.setdefault("init_method", "He" if is_newest else "Xavier")
        causal = given.pop("use_causal_mask", True)
        super().__init__(embed_dim, num_heads, num_kv_heads, use_rope=encoding == "rope", causal=causal, **given)


class MultiheadAttentionV2(MultiheadAttention):
    """The same layer, under its name in a branch of the newest source."""
