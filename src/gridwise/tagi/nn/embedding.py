"""A table of Gaussian vectors, looked up by index.

    forward   row i:  (W[i], S[i]);  zeros for `padding_idx`
    sums      s1[i] = sum of delta,  s2[i] = sum of Delta     over all lookups of i

The input is an index, not a Gaussian: it has no innovations.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import ArgumentError
from ..inference.initial_values import gaussian_parameters
from ..inference.tracing import is_traced
from .base_layer import ParametricLayer
from .gaussian import Gaussian, Innovation


class Embedding(ParametricLayer):
    """A lookup table: indices (batch, input_size) -> vectors (batch, input_size, embedding_dim).

    Parameters
    ----------
    num_embeddings, embedding_dim
        Rows and columns of the table.
    input_size
        Indices of one sample, for flat inputs.
    scale
        Standard deviation of the initial means, and of each entry around its mean.
    padding_idx
        The index whose vector is zero; -1 for none.

    Notes
    -----
    `compat='cutagi'` reproduces the original: the innovation of the variance is multiplied by the variance, not by its
    square, and sums are never reset to zero, so that rows once looked up change at every later step.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Embedding(10, 4, input_size=3))
    >>> mu, var = net(np.array([[0, 1, 2]], dtype='float32'))
    >>> mu.shape
    (12,)
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, input_size: int = 0, scale: float = 1.0, padding_idx: int = -1
    ) -> None:
        super().__init__(input_size, input_size * embedding_dim, bias=False)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.scale, self.padding_idx = scale, padding_idx
        self._piled: tuple[Tensor, Tensor] | None = None
        self.init_weight_bias()

    def _initial(self) -> dict[str, nn.Parameter]:
        return gaussian_parameters((self.num_embeddings, self.embedding_dim), None, self.scale, 1.0, 1.0)

    def forward(self, x: Gaussian) -> Gaussian:
        index = x.mu.round().long()
        self._check(x.mu, index)
        real = (index != self.padding_idx)[..., None]
        row = torch.where(real[..., 0], index, 0)
        self._keep(row, real)
        return Gaussian(self.mu_w[row] * real, self.var_w[row] * real)

    def _check(self, given: Tensor, index: Tensor) -> None:
        exact = round(2 / torch.finfo(given.dtype).eps)
        if self.num_embeddings - 1 > exact:
            raise ArgumentError(
                f"Embedding: `num_embeddings` (={self.num_embeddings}), and indices come in as {given.dtype}, which has all "
                f"whole numbers up to {exact} only.\n  fix: a network in a wider type (net.double(), say)."
            )
        if is_traced() or index.is_cuda or not index.numel():
            return
        looked_up = torch.where(index == self.padding_idx, 0, index)
        low, high = int(looked_up.min()), int(looked_up.max())
        if low < 0 or high >= self.num_embeddings:
            raise ArgumentError(
                f"Embedding: indices from {low} to {high} came in, `num_embeddings` (={self.num_embeddings})."
            )
        if bool((given != index).any()):
            raise ArgumentError(f"Embedding: {float(given[given != index][0])} came in for an index.")

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        row, real = self._recall()
        sums = []
        for d in delta:
            d = (d.reshape(*row.shape, self.embedding_dim) * real).reshape(-1, self.embedding_dim)
            sums.append(torch.zeros_like(self.mu_w).index_add_(0, row.reshape(-1), d))
        if self.compat == "cutagi":
            sums = self._accumulate(sums)
        self._sums_ready(row.shape[0], (sums[0], sums[1]), None)
        return Innovation(torch.zeros_like(row, dtype=delta.mu.dtype), torch.zeros_like(row, dtype=delta.mu.dtype))

    def _accumulate(self, sums: list[Tensor]) -> list[Tensor]:
        now = sums[0] * self.var_w, sums[1] * self.var_w
        if self._piled is not None:
            now = now[0] + self._piled[0], now[1] + self._piled[1]
        self._piled = now
        return [now[0] / self.var_w, now[1] / self.var_w**2]

    def carried(self) -> tuple[Tensor, ...]:
        return () if self._piled is None else self._piled

    def carry(self, states: tuple[Tensor, ...]) -> None:
        self._piled = (states[0], states[1]) if states else None

    def get_layer_info(self) -> str:
        return f"Embedding({self.num_embeddings}->{self.embedding_dim})"
