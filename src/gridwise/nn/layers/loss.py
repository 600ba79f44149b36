"""Losses of tensors that lie on a grid: each worker sums the terms of its block, and one number is made of them.

    loss = sum over all workers of (the terms of its block) / (how many there are in all)

Two conventions, and both are sums:

* The scalar of a layer here is ONE global loss that all workers of `P_x` see. `loss.backward()` on all of them is one
  backward of it; the cotangent counts once, not P times (`global_sum`).
* A loss that a user makes of local terms, such as ``(y - t).square().sum()`` on each worker, or of ``reduction='none'``,
  is the sum of these terms over the workers. Divide by the global count, not by that of the block.

A worker outside `P_x` gets a zero that requires grad, so that the same script calls `backward` everywhere. The losses
over classes are in `cross_entropy`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import _reduction
from torch.nn import functional as F

from ...errors import PartitionError
from ...grid import Layout
from ...partition import Partition
from ..engine.agreement import agree_layout
from ..engine.carrier import HALVES
from ..engine.global_sum import GlobalSum
from ..engine.mode import Held, held_by
from ..engine.module import Module
from ..parameters.blocks import Spread
from ..parameters.replicas import Replica


class DistributedLoss(Module):
    """What the losses share: torch's `reduction`, and the sum over the workers.

    A subclass gives the terms of its block in `_terms`. The input is a block of a tensor on `P_x`; the target has the
    same blocks.
    """

    reductions: tuple[str, ...] = ("none", "mean", "sum")
    _keeps_plans = True
    _settings: ClassVar[tuple[str, ...]] = ("reduction",)
    _fixed = ("P_x",)

    def __init__(
        self,
        P_x: Partition,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        signature: str = "",
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            reduction = _reduction.legacy_get_string(size_average, reduce)
        self._check_reduction(reduction)
        self.P_x, self.reduction = P_x, reduction
        self._layout: Layout | None = None
        self._records = False
        self._takes_part(P_x, signature=f"reduction={reduction!r}{', ' if signature else ''}{signature}")

    def _check_reduction(self, reduction: str) -> None:
        if reduction not in self.reductions:
            raise PartitionError(
                f"`reduction` (={reduction!r}) must be one of {', '.join(map(repr, self.reductions))}."
            )

    def _held(self) -> Held:
        return held_by(self)

    def _replicas(self) -> list[Replica]:
        """Weights are whole on every worker."""
        grid = self.P_x.grid
        return [Replica(n, v, Spread(grid, (None,) * v.dim(), tuple(v.shape))) for n, v in self.named_buffers()]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self._buffers:
            self.__dict__["_replicas_are_new"] = True

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.__dict__["_replicas_are_new"] = True

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        """The loss of this worker's block, with `reduction` 'none' or 'sum'."""
        raise NotImplementedError

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if self._is_outside:
            return _no_part(input, self.reduction)
        if self.reduction == "none":
            return self._terms(input, target, "none")
        # Half precision: the terms are those of torch, their sum and the division are made in float32.
        half = input.dtype in HALVES
        terms = self._terms(input, target, "none" if half else "sum")
        total = self._over_workers(terms.sum(dtype=torch.float32) if half else terms)
        return (total if self.reduction == "sum" else total / self._count).to(terms.dtype)

    @property
    def _count(self) -> int:
        """What 'mean' and 'batchmean' divide by."""
        assert self._layout is not None
        shape = self._layout.global_shape
        return shape[0] if self.reduction == "batchmean" else math.prod(shape)

    def _over_workers(self, partial: Tensor) -> Tensor:
        """The one sum of everyone's `partial`."""
        assert self._transport is not None
        return self._move(partial, GlobalSum(self._transport, self._team, self._says), self._records)

    def _distdl_module_setup(self, input: tuple[Tensor, Tensor]) -> None:
        assert self._transport is not None
        self._check_reduction(self.reduction)
        x, target = input
        grid = self.P_x.grid
        self._layout, agreed = agree_layout(self._transport, self._team, self._says, grid, x)
        self._records = agreed.requires_grad
        if target.dim() == x.dim():
            _, wants = agree_layout(self._transport, self._team, f"{self._says}, its target,", grid, target)
            self._records |= wants.requires_grad

    def _distdl_module_teardown(self, input: tuple[Tensor, Tensor]) -> None:
        self._layout = None

    def _problem_with(self, input: tuple) -> str | None:
        if len(input) != 2 or not all(isinstance(x, Tensor) for x in input):
            return f"needs two tensors, input and target, as positional arguments, got {len(input)} argument(s)"
        return self._problem_with_target(*input)

    def _problem_with_target(self, x: Tensor, target: Tensor) -> str | None:
        if x.shape != target.shape:
            return f"needs a target of the input's shape, got input {tuple(x.shape)} and target {tuple(target.shape)}"
        return None

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class DistributedL1Loss(DistributedLoss):
    """`torch.nn.L1Loss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    size_average, reduce, reduction : as in `torch.nn.L1Loss`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> loss = gridwise.nn.DistributedL1Loss(P_x)
    >>> loss(torch.ones(2, 3), torch.zeros(2, 3))
    tensor(1.)
    """

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.l1_loss(input, target, reduction=reduction)

    def _by_torch(self, input: Tensor, target: Tensor) -> Tensor:
        return self._terms(input, target, self.reduction)


class DistributedMSELoss(DistributedLoss):
    """`torch.nn.MSELoss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    size_average, reduce, reduction : as in `torch.nn.MSELoss`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> gridwise.nn.DistributedMSELoss(P_x)(torch.ones(2, 3), torch.zeros(2, 3))
    tensor(1.)
    """

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.mse_loss(input, target, reduction=reduction)

    def _by_torch(self, input: Tensor, target: Tensor) -> Tensor:
        return self._terms(input, target, self.reduction)


class DistributedSmoothL1Loss(DistributedLoss):
    """`torch.nn.SmoothL1Loss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    size_average, reduce, reduction, beta : as in `torch.nn.SmoothL1Loss`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> loss = gridwise.nn.DistributedSmoothL1Loss(P_x)
    >>> loss(torch.ones(2, 3), torch.zeros(2, 3))
    tensor(0.5000)
    """

    _settings = ("reduction", "beta")

    def __init__(
        self,
        P_x: Partition,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        beta: float = 1.0,
    ) -> None:
        super().__init__(P_x, size_average, reduce, reduction, f"beta={beta}")
        if beta < 0:
            raise PartitionError(f"`beta` (={beta}) must not be negative.")
        self.beta = beta

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.smooth_l1_loss(input, target, reduction=reduction, beta=self.beta)

    def _by_torch(self, input: Tensor, target: Tensor) -> Tensor:
        return self._terms(input, target, self.reduction)


class DistributedHuberLoss(DistributedLoss):
    """`torch.nn.HuberLoss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    reduction, delta : as in `torch.nn.HuberLoss`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> loss = gridwise.nn.DistributedHuberLoss(P_x)
    >>> loss(torch.ones(2, 3), torch.zeros(2, 3))
    tensor(0.5000)
    """

    _settings = ("reduction", "delta")

    def __init__(self, P_x: Partition, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(P_x, reduction=reduction, signature=f"delta={delta}")
        if delta <= 0:
            raise PartitionError(f"`delta` (={delta}) must be positive.")
        self.delta = delta

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.huber_loss(input, target, reduction=reduction, delta=self.delta)

    def _by_torch(self, input: Tensor, target: Tensor) -> Tensor:
        return self._terms(input, target, self.reduction)


class DistributedKLDivLoss(DistributedLoss):
    """`torch.nn.KLDivLoss` of tensors on `P_x`; 'batchmean' divides by the global batch.

    Parameters
    ----------
    P_x : the partition of the input and the target
    size_average, reduce, reduction, log_target : as in `torch.nn.KLDivLoss`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> loss = gridwise.nn.DistributedKLDivLoss(P_x)
    >>> loss(torch.zeros(2, 4), torch.full((2, 4), 0.25))
    tensor(-0.3466)
    """

    reductions = ("none", "mean", "batchmean", "sum")
    _settings = ("reduction", "log_target")

    def __init__(
        self,
        P_x: Partition,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(P_x, size_average, reduce, reduction, f"log_target={log_target}")
        self.log_target = log_target

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.kl_div(input, target, reduction=reduction, log_target=self.log_target)


class DistributedPoissonNLLLoss(DistributedLoss):
    """`torch.nn.PoissonNLLLoss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    log_input, full, size_average, eps, reduce, reduction : as in `torch.nn.PoissonNLLLoss`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> loss = gridwise.nn.DistributedPoissonNLLLoss(P_x)
    >>> loss(torch.zeros(2, 3), torch.ones(2, 3))
    tensor(1.)
    """

    _settings = ("reduction", "log_input", "full", "eps")

    def __init__(
        self,
        P_x: Partition,
        log_input: bool = True,
        full: bool = False,
        size_average: bool | None = None,
        eps: float = 1e-8,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(P_x, size_average, reduce, reduction, f"log_input={log_input}, full={full}, eps={eps}")
        self.log_input, self.full, self.eps = log_input, full, eps

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.poisson_nll_loss(
            input, target, log_input=self.log_input, full=self.full, eps=self.eps, reduction=reduction
        )


class DistributedBCELoss(DistributedLoss):
    """`torch.nn.BCELoss` of tensors on `P_x`; `weight` is that of the global tensor, as torch takes it.

    Parameters
    ----------
    P_x : the partition of the input and the target
    weight, size_average, reduce, reduction : as in `torch.nn.BCELoss`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> loss = gridwise.nn.DistributedBCELoss(P_x)
    >>> loss(torch.full((2, 3), 0.5), torch.ones(2, 3))
    tensor(0.6931)
    """

    weight: Tensor | None

    def __init__(
        self,
        P_x: Partition,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(P_x, size_average, reduce, reduction, f"weight={_shape_of(weight)}")
        self.register_buffer("weight", weight)

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.binary_cross_entropy(input, target, self._part(self.weight), reduction=reduction)

    def _part(self, weight: Tensor | None) -> Tensor | None:
        """This worker's part of a tensor that broadcasts to the global input."""
        if weight is None:
            return None
        assert self._layout is not None
        block = self._layout.block(self.P_x.ranks[self.P_x.rank])
        dims = range(len(block.start) - weight.dim(), len(block.start))
        return weight[tuple(block.slices[d] if weight.shape[i] > 1 else slice(None) for i, d in enumerate(dims))]

    def _distdl_module_setup(self, input: tuple[Tensor, Tensor]) -> None:
        super()._distdl_module_setup(input)
        assert self._layout is not None
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


class DistributedBCEWithLogitsLoss(DistributedBCELoss):
    """`torch.nn.BCEWithLogitsLoss` of tensors on `P_x`; `weight` and `pos_weight` are those of the global tensor.

    Parameters
    ----------
    P_x : the partition of the input and the target
    weight, size_average, reduce, reduction, pos_weight : as in `torch.nn.BCEWithLogitsLoss`

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> loss = gridwise.nn.DistributedBCEWithLogitsLoss(P_x)
    >>> loss(torch.zeros(2, 3), torch.ones(2, 3))
    tensor(0.6931)
    """

    pos_weight: Tensor | None

    def __init__(
        self,
        P_x: Partition,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(P_x, weight, size_average, reduce, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        weight, positive = self._part(self.weight), self._part(self.pos_weight)
        return F.binary_cross_entropy_with_logits(input, target, weight, pos_weight=positive, reduction=reduction)

    def _problem_with_target(self, x: Tensor, target: Tensor) -> str | None:
        return DistributedLoss._problem_with_target(self, x, target)


def _no_part(input: Tensor, reduction: str) -> Tensor:
    """What a worker outside the partition gets: nothing, joined to its graph so that `backward` can be called."""
    if reduction == "none":
        return input.clone()
    zero = input.sum() * 0
    return zero if zero.requires_grad or not torch.is_grad_enabled() else zero.requires_grad_()


def _shape_of(weight: Tensor | None) -> tuple[int, ...] | None:
    return None if weight is None else tuple(weight.shape)


def _check_broadcasts(what: str, name: str, shape: Sequence[int], to: Sequence[int]) -> None:
    fits = len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))
    if not fits:
        raise PartitionError(
            f"{what}: `{name}` of shape {tuple(shape)} does not broadcast to the global input of shape {tuple(to)}.\n"
            f"  fix: give the weight of the global tensor, on every worker."
        )
