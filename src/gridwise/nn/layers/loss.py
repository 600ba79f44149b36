"""Losses of elements on a grid: torch's function gives the terms of a block, `loss_base` their sum over the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import PartitionError
from ...partition import Partition
from ..docstrings import documented_like
from .loss_base import DistributedLoss, Flag


class ElementLoss(DistributedLoss):
    """A loss whose terms are those of one function of torch, called with the loss's settings."""

    function: ClassVar[Callable[..., Tensor]]

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        settings = {name: getattr(self, name) for name in self._settings}
        return type(self).function(input, target, **settings | {"reduction": reduction})


class DistributedL1Loss(ElementLoss):
    """`torch.nn.L1Loss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    size_average, reduce, reduction : as in torch

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> loss = gridwise.nn.DistributedL1Loss(P_x)
    >>> loss(torch.full((2, 3), 0.5), torch.ones(2, 3)).shape
    torch.Size([])
    """

    function = F.l1_loss

    def _by_torch(self, input: Tensor, target: Tensor) -> Tensor:
        return self._terms(input, target, self.reduction)


@documented_like(DistributedL1Loss)
class DistributedMSELoss(ElementLoss):
    function = F.mse_loss

    def _by_torch(self, input: Tensor, target: Tensor) -> Tensor:
        return self._terms(input, target, self.reduction)


@documented_like(DistributedL1Loss)
class DistributedSmoothL1Loss(ElementLoss):
    """`torch.nn.SmoothL1Loss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    size_average, reduce, reduction, beta : as in torch
    """

    function = F.smooth_l1_loss
    _settings = ("reduction", "beta")

    def __init__(
        self, P_x: Partition, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean", beta: float = 1.0
    ) -> None:
        if beta < 0:
            raise PartitionError(f"`beta` (={beta}) must not be negative.")
        self._init(P_x, size_average, reduce, reduction, beta=beta)

    def _by_torch(self, input: Tensor, target: Tensor) -> Tensor:
        return self._terms(input, target, self.reduction)


@documented_like(DistributedL1Loss)
class DistributedHuberLoss(ElementLoss):
    """`torch.nn.HuberLoss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    reduction, delta : as in torch
    """

    function = F.huber_loss
    _settings = ("reduction", "delta")

    def __init__(self, P_x: Partition, reduction: str = "mean", delta: float = 1.0) -> None:
        if delta <= 0:
            raise PartitionError(f"`delta` (={delta}) must be positive.")
        self._init(P_x, None, None, reduction, delta=delta)

    def _by_torch(self, input: Tensor, target: Tensor) -> Tensor:
        return self._terms(input, target, self.reduction)


@documented_like(DistributedL1Loss)
class DistributedKLDivLoss(ElementLoss):
    """`torch.nn.KLDivLoss` of tensors on `P_x`; 'batchmean' divides by the global batch.

    Parameters
    ----------
    P_x : the partition of the input and the target
    size_average, reduce, reduction, log_target : as in torch
    """

    function = F.kl_div
    reductions = ("none", "mean", "batchmean", "sum")
    _settings = ("reduction", "log_target")

    def __init__(
        self,
        P_x: Partition,
        size_average: Flag = None,
        reduce: Flag = None,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        self._init(P_x, size_average, reduce, reduction, log_target=log_target)


@documented_like(DistributedL1Loss)
class DistributedPoissonNLLLoss(ElementLoss):
    """`torch.nn.PoissonNLLLoss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    log_input, full, size_average, eps, reduce, reduction : as in torch
    """

    function = F.poisson_nll_loss
    _settings = ("reduction", "log_input", "full", "eps")

    def __init__(
        self,
        P_x: Partition,
        log_input: bool = True,
        full: bool = False,
        size_average: Flag = None,
        eps: float = 1e-8,
        reduce: Flag = None,
        reduction: str = "mean",
    ) -> None:
        self._init(P_x, size_average, reduce, reduction, log_input=log_input, full=full, eps=eps)


@documented_like(DistributedL1Loss)
class DistributedBCELoss(DistributedLoss):
    """`torch.nn.BCELoss` of tensors on `P_x`; `weight` is that of the global tensor, as torch takes it.

    Parameters
    ----------
    P_x : the partition of the input and the target
    weight, size_average, reduce, reduction : as in torch
    """

    weight: Tensor | None

    def __init__(
        self,
        P_x: Partition,
        weight: Tensor | None = None,
        size_average: Flag = None,
        reduce: Flag = None,
        reduction: str = "mean",
    ) -> None:
        self._init(P_x, size_average, reduce, reduction, weight=weight)

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.binary_cross_entropy(input, target, self._part(self.weight), reduction=reduction)

    def _part(self, weight: Tensor | None) -> Tensor | None:
        """This worker's part of a tensor that broadcasts to the global input."""
        if weight is None:
            return None
        block = self._layout.block(self.P_x.ranks[self.P_x.rank])
        dims = range(len(block.start) - weight.dim(), len(block.start))
        return weight[tuple(block.slices[d] if weight.shape[i] > 1 else slice(None) for i, d in enumerate(dims))]

    def _distdl_module_setup(self, input: tuple[Tensor, Tensor]) -> None:
        super()._distdl_module_setup(input)
        for name, weight in self.named_buffers():
            _check_broadcasts(self._says, name, weight.shape, self._layout.global_shape)

    def _problem_with_target(self, x: Tensor, target: Tensor) -> str | None:
        problem = super()._problem_with_target(x, target)
        for what, values in (("inputs", x), ("targets", target)):
            if problem is None and values.numel() and not values.is_meta:
                low, high = (float(end) for end in torch.aminmax(values.detach()))
                if not (low >= 0 and high <= 1):  # NaN too
                    problem = f"needs {what} between 0 and 1, got some from {low:g} to {high:g}"
        return problem


@documented_like(DistributedL1Loss)
class DistributedBCEWithLogitsLoss(DistributedBCELoss):
    """`torch.nn.BCEWithLogitsLoss` of tensors on `P_x`; `weight` and `pos_weight` are those of the global tensor.

    Parameters
    ----------
    P_x : the partition of the input and the target
    weight, size_average, reduce, reduction, pos_weight : as in torch
    """

    pos_weight: Tensor | None

    def __init__(
        self,
        P_x: Partition,
        weight: Tensor | None = None,
        size_average: Flag = None,
        reduce: Flag = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        self._init(P_x, size_average, reduce, reduction, weight=weight, pos_weight=pos_weight)

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        weight, positive = self._part(self.weight), self._part(self.pos_weight)
        return F.binary_cross_entropy_with_logits(input, target, weight, pos_weight=positive, reduction=reduction)

    def _problem_with_target(self, x: Tensor, target: Tensor) -> str | None:
        return DistributedLoss._problem_with_target(self, x, target)


def _check_broadcasts(what: str, name: str, shape: Sequence[int], to: Sequence[int]) -> None:
    fits = len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))
    if not fits:
        raise PartitionError(
            f"{what}: `{name}` of shape {tuple(shape)} does not broadcast to the global input of shape {tuple(to)}.\n"
            f"  fix: give the weight of the global tensor, on every worker."
        )
