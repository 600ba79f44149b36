"""The sum over all workers of a partition, on each of them."""

from __future__ import annotations

from torch import Tensor

from gridwise.nn.primitives.all_sum_reduce import AllSumReduce
from gridwise.partition import Partition

from ..partition import plain


class AllSumReduceFunction:
    """Called by `apply`, like a function of autograd."""

    @staticmethod
    def apply(input: Tensor, P_allreduce: Partition, *structures: object) -> Tensor:
        of = plain(P_allreduce)
        return AllSumReduce(of, axes_reduce=range(of.dim))(input) if of.active else input.clone()
