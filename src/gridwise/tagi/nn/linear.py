"""The fully connected layer z = W a + b, with Gaussian W (out, in), b and a.

    mu_z  = m W' + mu_b
    var_z = (v + m**2) S' + v (W**2)' + var_b                W, S = mean and variance of the weights; m, v of the input

    delta_in     = (delta W) J          sums   s1 = delta' m              s1_b = sum of delta over the batch
    delta_var_in = (Delta W**2) J**2           s2 = Delta' m**2           s2_b = sum of Delta over the batch

A training step takes seven matrix products (back-propagation three), or four in a first layer with exact inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import ArgumentError
from ..inference.products import product
from ..inference.tracing import is_traced
from .base_layer import Fans, ParametricLayer, Shape
from .gaussian import Gaussian, Innovation


class Linear(ParametricLayer):
    """A fully connected layer with Gaussian weights.

    Parameters
    ----------
    input_size, output_size
        Units of one sample, or of one token for inputs of shape (batch, token, unit).
    bias
        Whether there is an additive bias.
    gain_weight, gain_bias
        Factors on the initial standard deviations.
    init_method
        'He' or 'Xavier'.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Linear(3, 4))
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> mu.shape
    (8,)
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        gain_weight: float = 1.0,
        gain_bias: float = 1.0,
        init_method: str = "He",
    ) -> None:
        super().__init__(input_size, output_size, bias)
        self.gain_weight, self.gain_bias, self.init_method = gain_weight, gain_bias, init_method
        self.init_weight_bias()

    def _shapes(self) -> tuple[Shape, Shape, Fans]:
        return (self.output_size, self.input_size), (self.output_size,), (self.input_size, self.output_size)

    def as_input(self, flat: Tensor) -> Tensor:
        return flat if flat.ndim == 3 and flat.shape[-1] == self.input_size else super().as_input(flat)

    def _lead(self, shape: torch.Size) -> tuple[int, ...]:
        """The leading dims of the input, before the units: (batch,) or (batch, token)."""
        if shape[-1] == self.input_size and len(shape) != 4:
            return tuple(shape[:-1])
        if shape[1:].numel() == self.input_size:
            return (shape[0],)
        raise ArgumentError(
            f"{self.get_layer_info()}: the input of shape {tuple(shape)} has {shape[1:].numel()} units a sample.\n"
            f"  fix: Linear({shape[1:].numel()}, {self.output_size}), or check the layer before."
        )

    def forward(self, x: Gaussian) -> Gaussian:
        lead = self._lead(x.mu.shape)
        rows = x.reshape(-1, self.input_size)
        squares = None
        if rows.var is not None or self.training:
            squares = torch.mul(self.mu_w, self.mu_w, out=self._scratch("squares", self.mu_w))
        mu, var = linear_moments(self, rows, squares)
        self._keep(rows, squares, x.mu.shape)
        return Gaussian(mu.reshape(*lead, self.output_size), var.reshape(*lead, self.output_size))

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        x, squares, shape = self._recall()
        d = delta.reshape(-1, self.output_size)
        w = (
            product(d.mu.t(), x.mu, out=self._scratch("s1", self.mu_w)),
            product(d.var.t(), x.mu * x.mu, out=self._scratch("s2", self.mu_w)),
        )
        self._sums_ready(shape[0], w, (d.mu.sum(0), d.var.sum(0)))
        if not need_input:
            return None
        back = Innovation(product(d.mu, self.mu_w), product(d.var, squares))
        return back.through(x.jcb).reshape(*shape)

    def get_layer_info(self) -> str:
        return f"{self.get_layer_name()}({self.input_size},{self.output_size})"


def linear_moments(layer: ParametricLayer, x: Gaussian, squares: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of W x + b for rows `x`; `squares` is W**2, needed where x has a variance."""
    second = x.mu * x.mu if x.var is None else torch.addcmul(x.var, x.mu, x.mu)
    mu = product(x.mu, layer.mu_w.t(), layer.mu_b)
    var = product(second, layer.var_w.t(), layer.var_b)
    if x.var is not None and squares is not None:
        if not is_traced():
            return mu, var.addmm_(x.var, squares.t())
        var = product(x.var, squares.t(), var)
    return mu, var


class SLinear(Linear):
    """A `Linear` layer after an `SLSTM`: `Sequential.smoother()` passes the smoothed states through it, step by step.

    That pass uses the weights at the end of the series.

    Parameters
    ----------
    input_size, ..., init_method : as in `Linear`

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.SLSTM(1, 4), nn.SLinear(4, 1))
    >>> mu, var = net(np.ones((2, 1), dtype='float32'))
    >>> mu.shape
    (2,)
    """

    @torch.no_grad()
    def smoothed(self, hidden: Gaussian) -> Gaussian:
        """Moments of the output for the smoothed output `hidden` of the preceding layer."""
        rows = hidden.reshape(-1, self.input_size)
        mu, var = linear_moments(self, rows, self.mu_w * self.mu_w)
        return Gaussian(mu, var)
