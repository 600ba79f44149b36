"""Networks of one shape, trained side by side: a linear layer with a weight matrix for each of its members.

    units   (batch, member, unit)         the input of the first layer, (batch, unit), is common to all members
    W       (member, out, in)             the formulas of `Linear` for each member, as batched products

Twenty small networks in one take little longer than a single one: a small step is mostly call overhead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...nn.base_layer import Fans, ParametricLayer, Shape
from ...nn.gaussian import Gaussian, Innovation


class StackedLinear(ParametricLayer):
    """`Linear(input_size, output_size)` for each of `members` networks."""

    def __init__(self, members: int, input_size: int, output_size: int) -> None:
        super().__init__(input_size, output_size)
        self.members = members
        self.init_weight_bias()

    def _shapes(self) -> tuple[Shape, Shape, Fans]:
        outputs = self.members, self.output_size
        return (*outputs, self.input_size), outputs, (self.input_size, self.output_size)

    def _by_member(self, t: Tensor) -> Tensor:
        """(batch, unit) or (batch, member, unit) as (member, batch, unit)."""
        return t.expand(self.members, *t.shape) if t.ndim == 2 else t.transpose(0, 1)

    def forward(self, x: Gaussian) -> Gaussian:
        assert self.mu_b is not None
        assert self.var_b is not None
        m = self._by_member(x.mu)
        squares = self.mu_w * self.mu_w
        second = m * m
        mu = torch.baddbmm(self.mu_b[:, None], m, self.mu_w.mT)
        if x.var is None:
            var = torch.baddbmm(self.var_b[:, None], second, self.var_w.mT)
        else:
            v = self._by_member(x.var)
            var = torch.baddbmm(self.var_b[:, None], second + v, self.var_w.mT).baddbmm_(v, squares.mT)
        self._keep(m, second, squares, x.jcb)
        return Gaussian(mu.transpose(0, 1), var.transpose(0, 1))

    def backward(self, delta: Innovation, need_input: bool = True) -> Innovation | None:
        m, second, squares, jcb = self._recall()
        mu, var = (t.transpose(0, 1) for t in delta)
        self._sums_ready(m.shape[1], (mu.mT @ m, var.mT @ second), (mu.sum(1), var.sum(1)))
        if not need_input:
            return None
        back = Innovation((mu @ self.mu_w).transpose(0, 1), (var @ squares).transpose(0, 1))
        return back.through(jcb)

    def get_layer_info(self) -> str:
        return f"StackedLinear({self.members},{self.input_size},{self.output_size})"
