"""Attention between the tokens of a sample, with Gaussian queries, keys and values.

Queries, keys and values come from one linear map of the tokens and are taken as independent; D = units of a head:

    scores    mu_s = q k' / sqrt(D)         var_s = (v_q v_k' + v_q (k**2)' + q**2 v_k') / D
    weights   A = Remax(scores) over the keys that are not masked, with Jacobian J (see moments.py)
    output    mu = A V                      var = v_A v_V + v_A V**2 + A**2 v_V

    delta_A = delta V'        delta_V = A' delta        delta_s = J delta_A
    delta_q = delta_s k / sqrt(D)                       delta_k = delta_s' q / sqrt(D)

and for Delta the same with every factor squared. Rotary position embedding rotates pairs of units of q and k by the
angles t / theta**(2 d / D): a linear map, with squared cosines and sines for the variances.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...errors import ArgumentError
from ..inference import moments
from ..inference.products import wide_type
from .base_layer import BaseLayer
from .gaussian import Gaussian, Innovation
from .linear import Linear


class MultiheadAttention(BaseLayer):
    """Self-attention over tokens (batch, token, embed_dim).

    Parameters
    ----------
    embed_dim
        Units of a token, a multiple of `num_heads`.
    num_heads, num_kv_heads
        Heads of the queries, and of the keys and values; if fewer, each serves a group of query heads.
    bias, gain_weight, gain_bias, init_method
        Options of the linear map to queries, keys and values; see `Linear`.
    use_rope, rope_theta
        Whether to use rotary position embedding, and its base.
    causal
        Whether a token attends only to itself and to those before it.
    seq_len
        Tokens of a sample, for flat inputs.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.MultiheadAttention(8, 2, 1))
    >>> mu, var = net(torch.ones(2, 5, 8))
    >>> mu.shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        bias: bool = True,
        gain_weight: float = 1.0,
        gain_bias: float = 1.0,
        init_method: str = "Xavier",
        *,
        use_rope: bool = True,
        rope_theta: float = 10000.0,
        causal: bool = True,
        seq_len: int = 0,
    ) -> None:
        super().__init__(embed_dim * seq_len, embed_dim * seq_len)
        kv = num_heads if num_kv_heads is None else num_kv_heads
        if embed_dim % num_heads or num_heads % kv or (use_rope and (embed_dim // num_heads) % 2):
            raise ArgumentError(
                f"MultiheadAttention: `embed_dim` (={embed_dim}), `num_heads` (={num_heads}), `num_kv_heads` (={kv})\n"
                "  fix: num_heads divides embed_dim, num_kv_heads divides num_heads, and heads have an even number of "
                "units for rotary embedding."
            )
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, kv
        self.head_dim = embed_dim // num_heads
        self.use_rope, self.rope_theta, self.causal, self.seq_len = use_rope, rope_theta, causal, seq_len
        width = (num_heads + 2 * kv) * self.head_dim
        self.qkv = Linear(embed_dim, width, bias, gain_weight, gain_bias, init_method)

    def children_layers(self) -> Iterator[BaseLayer]:
        yield self.qkv

    def as_input(self, flat: Tensor) -> Tensor:
        if flat.ndim == 3:
            return flat
        if not self.seq_len:
            raise ArgumentError(
                "MultiheadAttention: flat values came in, and `seq_len` was not given.\n"
                "  fix: give it, or pass a tensor of shape (batch, token, unit)."
            )
        return self._samples(flat, self.seq_len * self.embed_dim).reshape(-1, self.seq_len, self.embed_dim)

    # ---- forward ----------------------------------------------------------------------------------------------------
    def forward(self, x: Gaussian) -> Gaussian:
        z = self.qkv.forward(x.map(self.as_input))
        q, k, v = self._split(z.mu)
        q_var, k_var, v_var = self._split(z.variance())
        if self.use_rope:
            cos, sin = self._angles(z.mu)
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
            q_var, k_var = _rotate_var(q_var, cos, sin), _rotate_var(k_var, cos, sin)
        scale = 1.0 / math.sqrt(self.head_dim)
        scores = (q @ k.mT) * scale
        scores_var = (q_var @ (k_var + k * k).mT + (q * q) @ k_var.mT) * scale**2
        a, a_var, jcb = moments.remax(scores, scores_var, self._allowed(scores))
        mu = a @ v
        var = a_var @ (v_var + v * v) + (a * a) @ v_var
        self._keep(q, k, v, a, jcb)
        return Gaussian(self._join(mu), self._join(var))

    def _split(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch, kv, group, token, unit), keys and values (batch, kv, 1, token, unit)."""
        heads = z.unflatten(-1, (self.num_heads + 2 * self.num_kv_heads, self.head_dim)).transpose(1, 2)
        q, k, v = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), 1)
        return q.unflatten(1, (self.num_kv_heads, -1)), k.unsqueeze(2), v.unsqueeze(2)

    def _join(self, heads: Tensor) -> Tensor:
        return heads.flatten(1, 2).transpose(1, 2).flatten(2)

    def _angles(self, like: Tensor) -> tuple[Tensor, Tensor]:
        dtype = wide_type(like.dtype)  # bfloat16 has the same number for tokens 256 and 257
        d = torch.arange(self.head_dim // 2, device=like.device, dtype=dtype)
        t = torch.arange(like.shape[1], device=like.device, dtype=dtype)
        angle = t[:, None] / self.rope_theta ** (2.0 * d / self.head_dim)
        return torch.cos(angle).to(like.dtype), torch.sin(angle).to(like.dtype)

    def _allowed(self, scores: Tensor) -> Tensor | None:
        if not self.causal:
            return None
        t = scores.shape[-1]
        return torch.ones(t, t, device=scores.device, dtype=scores.dtype).tril()

    # ---- backward ---------------------------------------------------------------------------------------------------
    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        q, k, v, a, jcb = self._recall()
        scale = 1.0 / math.sqrt(self.head_dim)
        mu = self._adjoint(delta.mu, q * scale, k * scale, v, a, jcb, 1)
        var = self._adjoint(delta.var, (q * scale) ** 2, (k * scale) ** 2, v * v, a * a, jcb * jcb, 2)
        return self.qkv.backward(Innovation(mu, var), need_input)

    def _adjoint(self, d: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, jcb: Tensor, power: int) -> Tensor:
        """Innovations of the linear map's output; the factors are already raised to `power`."""
        batch, tokens = a.shape[0], a.shape[-1]
        d = d.reshape(batch, tokens, self.num_kv_heads, self.num_heads // self.num_kv_heads, self.head_dim).permute(
            0, 2, 3, 1, 4
        )
        d_scores = (d @ v.mT) * jcb
        d_v = (a.mT @ d).sum(2, keepdim=True)
        d_q, d_k = d_scores @ k, (d_scores.mT @ q).sum(2, keepdim=True)
        if self.use_rope:
            cos, sin = self._angles(d.new_empty(1, tokens))
            turn = _rotate if power == 1 else _rotate_var
            d_q, d_k = turn(d_q, cos, -sin), turn(d_k, cos, -sin)
        heads = torch.cat((d_q.flatten(1, 2), d_k.flatten(1, 2), d_v.flatten(1, 2)), 1)
        return heads.transpose(1, 2).flatten(2)

    def get_layer_info(self) -> str:
        return f"MultiheadAttention({self.embed_dim},{self.num_heads},{self.num_kv_heads})"


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def _rotate_var(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd, c, s = x[..., 0::2], x[..., 1::2], cos * cos, sin * sin
    return torch.stack((even * c + odd * s, even * s + odd * c), -1).flatten(-2)
