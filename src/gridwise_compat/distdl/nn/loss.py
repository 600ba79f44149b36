"""DistDL's losses: the first worker of `P_x` has the value; the others get 0.0, and must call `backward` too.

    local terms --sum to worker 0--> / global count --> loss there, 0.0 elsewhere

Only the first worker's cotangent counts. The losses of `gridwise.nn` return the value on every worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from gridwise.errors import PartitionError
from gridwise.partition import Partition

from ...notes import note
from ..backends.mpi.partition import plain
from ..functional import ZeroVolumeCorrectorFunction
from .module import Module
from .primitives import SumReduce


class DistributedLossBase(Module):
    """A loss of tensors on `P_x`; a subclass sets torch's function and module."""

    BaseLossLayer: ClassVar[Any] = None
    _terms: ClassVar[Callable[..., Tensor]]
    _valid_reductions: ClassVar[list[str]] = ["none", "mean", "sum"]

    def __init__(self, P_x: Partition, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in self._valid_reductions:
            raise PartitionError(f"`reduction` (={reduction!r}) must be one of {', '.join(self._valid_reductions)}.")
        self.P_x, self.reduction = P_x, reduction
        self.reduction_mode = reduction
        everyone = plain(P_x)
        first = everyone.create_partition_inclusive([0]).create_cartesian_topology_partition([1] * everyone.dim)
        self.P_0 = first
        self.sum_reduce = SumReduce(everyone, first, preserve_batch=False)
        if everyone.size > 1:
            note(
                f"distdl.nn.{type(self).__name__}",
                "the loss is on the first worker, 0.0 on the others, as in DistDL; gridwise.nn has it on all of them.",
            )

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        here = plain(self.P_x)
        if not here.active:
            if self.reduction == "none":
                return input.clone()
            return ZeroVolumeCorrectorFunction.apply(
                input.flatten()[:0].clone().requires_grad_(torch.is_grad_enabled())
            )
        if self.reduction == "none":
            return type(self)._terms(input, target, reduction="none")
        self.sum_reduce.problem = None
        try:
            terms = type(self)._terms(input, target, reduction="sum")
        except (RuntimeError, TypeError, ValueError) as error:
            terms, self.sum_reduce.problem = input.new_zeros(()), f"{type(self).__name__}: {error}"
        index = here.index
        assert index is not None
        batch = input.shape[0] if not any(index[1:]) else 0
        counts = terms.new_tensor([input.numel(), batch], dtype=torch.float64)  # exact, where float32 is not
        sums = self.sum_reduce(torch.cat([terms.double().reshape(1), counts]).reshape((3, *(1,) * (here.dim - 1))))
        if not self.P_0.active:
            return ZeroVolumeCorrectorFunction.apply(sums).to(terms.dtype)
        total, number, samples = sums.flatten()
        by = {"sum": 1, "mean": number.detach(), "batchmean": samples.detach()}[self.reduction]
        return (total / by).to(terms.dtype)


__all__ = []
for _name, _function in {
    "L1Loss": F.l1_loss,
    "MSELoss": F.mse_loss,
    "PoissonNLLLoss": F.poisson_nll_loss,
    "BCELoss": F.binary_cross_entropy,
    "BCEWithLogitsLoss": F.binary_cross_entropy_with_logits,
    "KLDivLoss": F.kl_div,
}.items():
    _attributes = {"BaseLossLayer": getattr(torch.nn, _name), "_terms": _function, "__module__": __name__}
    if _name == "KLDivLoss":
        _attributes["_valid_reductions"] = [*DistributedLossBase._valid_reductions, "batchmean"]
    globals()[f"Distributed{_name}"] = type(f"Distributed{_name}", (DistributedLossBase,), _attributes)
    __all__ += [f"Distributed{_name}"]
