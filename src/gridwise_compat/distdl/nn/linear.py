"""DistDL's affine layer: each worker of `P_w` has a `torch.nn.Linear` with its block of the weight.

    x --broadcast--> P_w --sublinear--> partial results --sum--> P_y

State keys are `sublinear.weight` and, where the bias is added, `sublinear.bias`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gridwise.errors import PartitionError
from gridwise.partition import Partition

from ..backends.mpi.partition import plain
from ..utilities.slicing import compute_subshape
from .module import Module
from .primitives import Broadcast, SumReduce


class DistributedLinear(Module):
    """``y = x W' + b`` with `P_x` (1, p_in), `P_y` (1, p_out) and `P_w` (p_out, p_in).

    `gridwise.nn.DistributedLinear` also accepts a batch that is cut and inputs of more dims.
    """

    def __init__(
        self, P_x: Partition, P_y: Partition, P_w: Partition, in_features: int, out_features: int, bias: bool = True
    ) -> None:
        super().__init__()
        x, y, w = (plain(each).geometry.shape for each in (P_x, P_y, P_w))
        if len(w) != 2 or x != (1, w[1]) or y != (1, w[0]):
            raise PartitionError(
                f"DistributedLinear: `P_x` (={x}) and `P_y` (={y}) must be (1, p_in) and (1, p_out) of `P_w` (={w})."
            )
        self.P_x, self.P_y, self.P_w = P_x, P_y, P_w
        self.in_features, self.out_features, self.bias = in_features, out_features, bias
        self.x_broadcast = Broadcast(P_x, P_w, preserve_batch=True)
        self.y_sum_reduce = SumReduce(P_w, P_y, transpose_src=True, preserve_batch=True)
        if P_w.active:
            index = plain(P_w).index
            assert index is not None
            rows, columns = compute_subshape(w, index, (out_features, in_features)).tolist()
            self.sublinear = torch.nn.Linear(columns, rows, bias=bias and index[-1] == 0)

    def forward(self, input: Tensor) -> Tensor:
        if not any(each.active for each in (self.P_x, self.P_y, self.P_w)):
            return input.clone()
        fits = input.dim() == 2 or not input.numel()
        self.x_broadcast.problem = (
            None if fits else f"DistributedLinear got {tuple(input.shape)}, not (batch, features)"
        )
        x = self.x_broadcast(input)
        if self.P_w.active:
            x = self.sublinear(x)
        return self.y_sum_reduce(x)
