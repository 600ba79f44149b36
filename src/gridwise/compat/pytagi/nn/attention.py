"""Attention: Gridwise's own, with pytagi's attributes and both orders of its arguments."""

from __future__ import annotations

from typing import Any

from gridwise.errors import UnsupportedError
from gridwise.tagi.nn import attention as own

from .base_layer import BaseLayer

RELEASED = ("bias", "gain_weight", "gain_bias", "init_method")
NEWEST = (
    "seq_len", "bias", "gain_weight", "gain_bias", "init_method", "pos_emb", "rope_theta", "max_seq_len", "use_causal_mask",
)  # fmt: skip


class MultiheadAttention(BaseLayer):
    """`(embed_dim, num_heads, num_kv_heads, bias, gain_weight, gain_bias, init_method)`, and the newest source's arguments.

    The newest source has `seq_len` before `bias`, and `pos_emb`, `rope_theta`, `max_seq_len` and `use_causal_mask` at the end;
    a fourth argument by position is `bias` if it is a truth value. With any of the newest names, `init_method` is 'He'
    unless given, else 'Xavier'.
    """

    _own = own.MultiheadAttention

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
                f"MultiheadAttention: `pos_emb` (={encoding!r}) is not there.\n"
                "  fix: pos_emb='rope', or '' and positions added to the input."
            )
        given.pop("max_seq_len", None)  # the length of a table that is not needed
        given.setdefault("init_method", "He" if is_newest else "Xavier")
        causal = given.pop("use_causal_mask", True)
        super().__init__(embed_dim, num_heads, num_kv_heads, use_rope=encoding == "rope", causal=causal, **given)


class MultiheadAttentionV2(MultiheadAttention):
    """The name of a branch of the newest source: the same layer."""
