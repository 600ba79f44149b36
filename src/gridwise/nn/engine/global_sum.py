"""A sum that counts once: the operator behind a loss that every worker sees.

    forward  y = sum_k x_k      over the workers; all see the same y
    adjoint  x_k = y            every worker holds the one cotangent already: nothing is summed or sent
    bytes    the numbers once, along a tree

`AllSum` makes P tensors that happen to be equal, so its adjoint adds P cotangents. Here there is *one* result, which P
workers see, and one cotangent, which P workers hold: `loss.backward()` on all of them is one backward pass. The two
operators differ in what the result is, not in what is sent forward.
"""

from __future__ import annotations

from torch import Tensor

from .operator import Operator


class GlobalSum(Operator):
    """Sum over a team into one value that all of it sees."""

    @property
    def adjoint(self) -> GlobalCopy:
        return GlobalCopy(self)

    def __call__(self, x: Tensor) -> Tensor:
        return self.transport.all_sum(x, self.team, self.name) if len(self.team) > 1 else x.clone()


class GlobalCopy(Operator):
    """The adjoint of `GlobalSum`: every worker takes the one value, which it already holds."""

    def __init__(self, forth: GlobalSum) -> None:
        super().__init__(forth.transport, forth.team, f"the adjoint of {forth.name}")
        self.forth = forth

    @property
    def adjoint(self) -> GlobalSum:
        return self.forth

    def __call__(self, y: Tensor) -> Tensor:
        return y.clone()
