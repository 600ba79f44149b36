"""Losses of tensors on a grid: each worker sums the terms of its block, and the sums are added up to one number.

    loss = sum over all workers of (the terms of its block) / (how many there are in all)

Two conventions, and both are sums:

* The scalar that a layer here returns is ONE global loss, the same on all workers of `P_x`. Calling `loss.backward()`
  on all of them is one backward pass of it; the cotangent counts once, not P times (`global_sum`).
* A loss that the user computes from local terms, such as ``(y - t).square().sum()`` on each worker, or from
  ``reduction='none'``, is the sum of these terms over the workers. Divide by the global count, not the block's.

A worker outside `P_x` gets a zero that requires grad, so that one script can call `backward` everywhere. This file has
the elementwise losses, each of which takes its terms from a function of torch; `cross_entropy` has those over classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import PartitionError
from ...grid import Layout
from ...operators.formats import HALVES
from ...partition import Partition
from ...torch_internals.operators import assert_async
from ..docstrings import LayerFamily, arguments_of
from ..engine.agreement import agree_layout
from ..engine.global_sum import GlobalSum
from ..engine.mode import StateStructure, structure_of_state
from ..engine.module import Module
from ..parameters.blocks import Sharding
from ..parameters.replicas import Replica


class DistributedLoss(LayerFamily, Module):
    """`torch.nn.L1Loss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    size_average, reduce, reduction : as in torch

    Shape
    -----
    - input, target: any shape, the same for both; this worker's blocks of them
    - loss: a scalar, the same on all workers; with ``reduction='none'`` a block of terms

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> loss = gridwise.nn.DistributedL1Loss(P_x)
    >>> loss(torch.full((2, 3), 0.5), torch.ones(2, 3)).shape
    torch.Size([])
    """

    function: ClassVar[Callable[..., Tensor]]
    """Torch's function, which computes the terms of a block."""
    P_x: Partition
    reduction: str
    _layout: Layout
    """The layout of the input; set by set-up."""
    reductions: tuple[str, ...] = ("none", "mean", "sum")
    _keeps_plans = True
    _settings: ClassVar[tuple[str, ...]] = ("reduction",)
    _fixed = ("P_x",)

    @arguments_of(torch.nn.L1Loss)
    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        self._copy_settings(P_x, template)

    def _copy_settings(self, P_x: Partition, template: torch.nn.Module) -> None:
        """Take the settings and the buffers of torch's loss."""
        super().__init__()
        self.P_x, self._records = P_x, False
        for name in self._settings:
            setattr(self, name, getattr(template, name))
        for name, buffer in template._buffers.items():
            self.register_buffer(name, buffer)
        self._check_settings()
        words = [f"{name}={getattr(self, name)!r}" for name in self._settings]
        words += [f"{name}={None if v is None else tuple(v.shape)}" for name, v in self._buffers.items()]
        self._takes_part(P_x, signature=", ".join(words))

    def _check_settings(self) -> None:
        """Raise for settings that torch would refuse only later, or not on all workers."""
        if self.reduction not in self.reductions:
            raise PartitionError(
                f"`reduction` (={self.reduction!r}) must be one of {', '.join(map(repr, self.reductions))}."
            )

    def _state_structure(self) -> StateStructure:
        return structure_of_state(self)

    def _replicas(self) -> list[Replica]:
        """The weights, which every worker holds whole."""
        grid = self.P_x.geometry
        return [Replica(n, v, Sharding(grid, (None,) * v.dim(), tuple(v.shape))) for n, v in self.named_buffers()]

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in self._buffers:
            self.__dict__["_replicas_are_new"] = True

    def _load_from_state_dict(self, *args: object) -> None:
        super()._load_from_state_dict(*args)
        self.__dict__["_replicas_are_new"] = True

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        """The loss of this worker's block."""
        settings = {name: getattr(self, name) for name in self._settings}
        return type(self).function(input, target, **settings | {"reduction": reduction})

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if self._is_outside:
            return without_part(input, self.reduction)
        if self.reduction == "none":
            return self._terms(input, target, "none")
        # Half precision: the terms are torch's, but they are summed and divided in float32.
        half = input.dtype in HALVES
        terms = self._terms(input, target, "none" if half else "sum")
        total = self._over_workers(terms.sum(dtype=torch.float32) if half else terms)
        return (total if self.reduction == "sum" else total / self._count).to(terms.dtype)

    @property
    def _count(self) -> int:
        """The divisor of 'mean' and 'batchmean'."""
        shape = self._layout.global_shape
        return shape[0] if self.reduction == "batchmean" else math.prod(shape)

    def _over_workers(self, partial: Tensor) -> Tensor:
        """The sum of `partial` over all workers."""
        return self._move(partial, GlobalSum(self.P_x.transport, self._team, self._title), self._records)

    def _distdl_module_setup(self, input: tuple[Tensor, Tensor]) -> None:
        self._check_settings()
        x, target = input
        grid = self.P_x.geometry
        self._layout, agreed = agree_layout(self.P_x.transport, self._team, self._title, grid, x)
        self._records = agreed.requires_grad
        if target.dim() == x.dim():
            _, wants = agree_layout(self.P_x.transport, self._team, f"{self._title}, its target,", grid, target)
            self._records |= wants.requires_grad

    def _distdl_module_teardown(self, input: tuple[Tensor, Tensor]) -> None:
        self.__dict__.pop("_layout", None)

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


class ElementLoss(DistributedLoss):
    """Base of losses that on a single worker are just a call of torch."""

    def _by_torch(self, input: Tensor, target: Tensor) -> Tensor:
        return self._terms(input, target, self.reduction)


class DistributedL1Loss(ElementLoss):
    function = F.l1_loss


class DistributedMSELoss(ElementLoss):
    function = F.mse_loss


class DistributedSmoothL1Loss(ElementLoss):
    """`torch.nn.SmoothL1Loss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    size_average, reduce, reduction, beta : as in torch
    """

    beta: float
    function = F.smooth_l1_loss
    _settings = ("reduction", "beta")

    @arguments_of(torch.nn.SmoothL1Loss)
    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        self._copy_settings(P_x, template)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.beta < 0:
            raise PartitionError(f"`beta` (={self.beta}) must not be negative.")


class DistributedHuberLoss(ElementLoss):
    """`torch.nn.HuberLoss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    reduction, delta : as in torch
    """

    delta: float
    function = F.huber_loss
    _settings = ("reduction", "delta")

    @arguments_of(torch.nn.HuberLoss)
    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        self._copy_settings(P_x, template)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.delta <= 0:
            raise PartitionError(f"`delta` (={self.delta}) must be positive.")


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

    @arguments_of(torch.nn.KLDivLoss)
    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        self._copy_settings(P_x, template)

    @property
    def _is_torchs_own(self) -> bool:
        return self.reduction != "mean"  # torch warns that its meaning will change


class DistributedPoissonNLLLoss(ElementLoss):
    """`torch.nn.PoissonNLLLoss` of tensors on `P_x`.

    Parameters
    ----------
    P_x : the partition of the input and the target
    log_input, full, size_average, eps, reduce, reduction : as in torch
    """

    function = F.poisson_nll_loss
    _settings = ("reduction", "log_input", "full", "eps")

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        return super().forward(log_input, target)

    @arguments_of(torch.nn.PoissonNLLLoss)
    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        self._copy_settings(P_x, template)


class DistributedBCEWithLogitsLoss(DistributedLoss):
    """`torch.nn.BCEWithLogitsLoss` of tensors on `P_x`; `weight` and `pos_weight` are for the global tensor.

    Parameters
    ----------
    P_x : the partition of the input and the target
    weight, size_average, reduce, reduction, pos_weight : as in torch
    """

    function: ClassVar[Callable[..., Tensor]] = F.binary_cross_entropy_with_logits

    @arguments_of(torch.nn.BCEWithLogitsLoss)
    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        self._copy_settings(P_x, template)

    def _terms(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        weights = {name: None if v is None else self._part(v) for name, v in self._buffers.items()}
        return type(self).function(input, target, **weights, reduction=reduction)

    def _part(self, weight: Tensor) -> Tensor:
        """This worker's part of a tensor that broadcasts to the global input."""
        block = self._layout.block(self.P_x.transport.rank)
        dims = range(len(block.start) - weight.dim(), len(block.start))
        return weight[tuple(block.slices[d] if weight.shape[i] > 1 else slice(None) for i, d in enumerate(dims))]

    def _distdl_module_setup(self, input: tuple[Tensor, Tensor]) -> None:
        super()._distdl_module_setup(input)
        for name, weight in self.named_buffers():
            _check_broadcasts(self._title, name, weight.shape, self._layout.global_shape)


class DistributedBCELoss(DistributedBCEWithLogitsLoss):
    """`torch.nn.BCELoss` of tensors on `P_x`; `weight` is for the global tensor, as in torch.

    Parameters
    ----------
    P_x : the partition of the input and the target
    weight, size_average, reduce, reduction : as in torch
    """

    function = F.binary_cross_entropy

    @arguments_of(torch.nn.BCELoss)
    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        self._copy_settings(P_x, template)

    def _problem_with_target(self, x: Tensor, target: Tensor) -> str | None:
        problem = super()._problem_with_target(x, target)
        for what, values in (("inputs", x), ("targets", target)):
            if problem is not None or not values.numel() or values.is_meta:
                continue
            if values.is_cuda and self._distdl_is_setup:  # checked on the device, so that the host need not wait
                assert_async(((values >= 0) & (values <= 1)).all())
            else:
                low, high = (float(end) for end in torch.aminmax(values.detach()))
                if not (low >= 0 and high <= 1):  # NaN too
                    problem = f"needs {what} between 0 and 1, got values from {low:g} to {high:g}"
        return problem


def without_part(input: Tensor, reduction: str) -> Tensor:
    """The loss on a worker outside the partition: zero or no terms, in its graph so that `backward` can be called."""
    if reduction == "none":
        return input.clone()
    zero = input.sum() * 0
    return zero if zero.requires_grad or not torch.is_grad_enabled() else zero.requires_grad_()


def _check_broadcasts(what: str, name: str, shape: Sequence[int], to: Sequence[int]) -> None:
    fits = len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))
    if not fits:
        raise PartitionError(
            f"{what}: `{name}` of shape {tuple(shape)} does not broadcast to the global input of shape {tuple(to)}.\n"
            f"  fix: give the weight of the global tensor, on every worker."
        )
