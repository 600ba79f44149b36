"""Modules of torch that can be traced into once their `forward` is written plainly: attention, transformers, embeddings.

Torch's own has fast paths and checks that look at tensors, which a graph cannot. What is written here does the same in
functions and modules that have rules. Parameters keep their names; they are used outside of layers (`held`). It is the
ordinary path that is written here: the fast one of an encoder, without gradients, writes zeros at tokens that are hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def attention(
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`torch.nn.MultiheadAttention` of a batch."""
    if is_causal and attn_mask is None:
        raise ValueError("MultiheadAttention needs `attn_mask` where `is_causal` is set.")
    by_hint = is_causal and key_padding_mask is None and not need_weights
    if by_hint:
        attn_mask = None  # so torch has it: the hint alone says what is hidden
    sizes = (self.embed_dim, self.num_heads, self.batch_first)
    called(attention_check, query, key, value, key_padding_mask, attn_mask, need_weights, sizes)
    q, k, v = (_heads(self, x) for x in _projected(self, query, key, value))  # (batch, head, token, feature)
    weights: Tensor | None = None
    if by_hint:
        dropped = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped, is_causal=True)
    elif self.dropout or need_weights or attn_mask is not None or key_padding_mask is not None:
        scores = (q / math.sqrt(self.head_dim)) @ k.transpose(-2, -1)
        if attn_mask is not None:
            scores = called(with_mask, scores, attn_mask)
        if key_padding_mask is not None:
            scores = called(with_mask, scores, key_padding_mask[:, None, None, :])
        weights = scores.softmax(-1) if need_weights else called(shares, scores)
        if self.dropout:
            weights = F.dropout(weights, self.dropout, training=self.training)
        y = weights @ v
    else:
        y = F.scaled_dot_product_attention(q, k, v)
    y = self.out_proj(y.transpose(1, 2).flatten(2))
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    return y if self.batch_first else y.transpose(0, 1), weights if need_weights else None


def _projected(self: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values as ``(batch, token, feature)``."""
    given = (query, key, value)
    if not self.batch_first:
        turned = {id(x): x.transpose(0, 1) for x in given}  # one for each, so that they can be told apart
        given = (turned[id(query)], turned[id(key)], turned[id(value)])
    n, bias = self.embed_dim, self.in_proj_bias
    if self._qkv_same_embed_dim and given[0] is given[1] is given[2]:
        q, k, v = F.linear(given[0], self.in_proj_weight, bias).chunk(3, -1)
        return q, k, v
    if self._qkv_same_embed_dim:
        weights = [self.in_proj_weight[i * n : (i + 1) * n] for i in range(3)]
    else:
        weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
    biases = [None if bias is None else bias[i * n : (i + 1) * n] for i in range(3)]
    return tuple(F.linear(x, weight, b) for x, weight, b in zip(given, weights, biases, strict=True))


def _heads(self: Any, x: Tensor) -> Tensor:
    return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)


def with_mask(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores of attention where a mask is added to them, or says with True what does not count."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"only bool and floating types of masks are supported, got {mask.dtype}")
    if mask.dtype == torch.bool:  # added, as torch does: where nothing counts, nan comes out, and nan goes back
        mask = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, -math.inf)
    return scores + mask


def shares(scores: Tensor) -> Tensor:
    """The softmax of scores, and zeros where nothing counts: so torch's attention has it, where it gives no weights."""
    hidden = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(hidden, 0.0).softmax(-1).masked_fill(hidden, 0.0)


def attention_check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    need_weights: bool,
    sizes: tuple[int, int, bool],
) -> None:
    """Let torch refuse what does not fit in attention of global tensors, which have no numbers; made for rehearsals."""
    embed_dim, heads, batch_first = sizes
    if batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    widths = embed_dim, key.shape[-1], value.shape[-1]
    q, k, v = (query.new_empty(embed_dim, width) for width in widths)
    no_bias, out = query.new_empty(3 * embed_dim), query.new_empty(embed_dim, embed_dim)
    try:
        F.multi_head_attention_forward(
            query, key, value, embed_dim, heads, None, no_bias, None, None, False, 0.0, out, None,
            key_padding_mask=key_padding_mask, need_weights=need_weights, attn_mask=attn_mask,
            use_separate_proj_weight=True, q_proj_weight=q, k_proj_weight=k, v_proj_weight=v,
        )  # fmt: skip
    except AssertionError as error:
        raise ValueError(str(error)) from None


def called(function: Callable[..., Any], *args: Any) -> Any:
    """A call of a function that is one node of the graph."""
    tracer = next((arg.tracer for arg in args if isinstance(arg, torch.fx.Proxy)), None)
    return function(*args) if tracer is None else tracer.create_proxy("call_function", function, args, {})


def encoder_layer(
    self: Any,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    x = src
    if self.norm_first:
        x = x + self._sa_block(self.norm1(x), src_mask, src_key_padding_mask, is_causal=is_causal)
        return x + self._ff_block(self.norm2(x))
    x = self.norm1(x + self._sa_block(x, src_mask, src_key_padding_mask, is_causal=is_causal))
    return self.norm2(x + self._ff_block(x))


def encoder(
    self: Any,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    for layer in self.layers:
        src = layer(src, mask, src_key_padding_mask, bool(is_causal))
    return src if self.norm is None else self.norm(src)


def decoder_layer(
    self: Any,
    tgt: Tensor,
    memory: Tensor,
    tgt_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    tgt_key_padding_mask: Tensor | None = None,
    memory_key_padding_mask: Tensor | None = None,
    tgt_is_causal: bool = False,
    memory_is_causal: bool = False,
) -> Tensor:
    x, own, other = tgt, (tgt_mask, tgt_key_padding_mask), (memory_mask, memory_key_padding_mask)
    if self.norm_first:
        x = x + self._sa_block(self.norm1(x), *own, tgt_is_causal)
        x = x + self._mha_block(self.norm2(x), memory, *other, memory_is_causal)
        return x + self._ff_block(self.norm3(x))
    x = self.norm1(x + self._sa_block(x, *own, tgt_is_causal))
    x = self.norm2(x + self._mha_block(x, memory, *other, memory_is_causal))
    return self.norm3(x + self._ff_block(x))


def decoder(
    self: Any,
    tgt: Tensor,
    memory: Tensor,
    tgt_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    tgt_key_padding_mask: Tensor | None = None,
    memory_key_padding_mask: Tensor | None = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Tensor:
    masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
    for layer in self.layers:
        tgt = layer(tgt, memory, *masks, bool(tgt_is_causal), memory_is_causal)
    return tgt if self.norm is None else self.norm(tgt)


def transformer(
    self: Any,
    src: Tensor,
    tgt: Tensor,
    src_mask: Tensor | None = None,
    tgt_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    tgt_key_padding_mask: Tensor | None = None,
    memory_key_padding_mask: Tensor | None = None,
    src_is_causal: bool | None = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Tensor:
    memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
    masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
    return self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)


FORWARDS: dict[type[torch.nn.Module], Any] = {
    torch.nn.MultiheadAttention: attention,
    torch.nn.TransformerEncoderLayer: encoder_layer,
    torch.nn.TransformerEncoder: encoder,
    torch.nn.TransformerDecoderLayer: decoder_layer,
    torch.nn.TransformerDecoder: decoder,
    torch.nn.Transformer: transformer,
}
AS_IT_IS = (torch.nn.Embedding, torch.nn.RMSNorm)
"""Modules that have no layer, and whose own `forward` is plain."""
BY_FUNCTION = (torch.nn.Linear, torch.nn.modules.conv._ConvNd, torch.nn.LayerNorm, *AS_IT_IS)
"""Modules that are one function of their parameters, which has a rule: parameters may be used elsewhere too."""


def made_plain(model: torch.nn.Module) -> set[int]:
    """Write the `forward` of all such modules in `model` plainly; the ids of those that can now be traced into."""
    from . import recurrent

    forwards = {
        **FORWARDS,
        torch.nn.LSTM: recurrent.forward,
        torch.nn.GRU: recurrent.forward,
        torch.nn.RNN: recurrent.forward,
    }
    found = set[int]()
    for module in model.modules():
        form = next((form for kind, form in forwards.items() if _runs_as(module, kind)), None)
        if form is not None and _is_plain(module):
            module.forward = MethodType(form, module)
            found.add(id(module))
        elif isinstance(module, AS_IT_IS):
            found.add(id(module))
    return found


def _runs_as(module: torch.nn.Module, kind: type[torch.nn.Module]) -> bool:
    return isinstance(module, kind) and type(module).forward is kind.forward


def _is_plain(module: Any) -> bool:
    """Whether none of the arguments is in use that the plain forms leave out."""
    if isinstance(module, torch.nn.RNNBase):
        return not (module.dropout and module.num_layers > 1)
    attends = isinstance(module, torch.nn.MultiheadAttention)
    return not attends or (module.bias_k is None and module.bias_v is None and not module.add_zero_attn)
