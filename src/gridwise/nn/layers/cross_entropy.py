"""Losses over classes, whose class dim may be cut too.

    loss(n) = w_t (log sum_c exp x_c - x_t)        t = target of sample n, w = weight of its class

With the classes on several workers, the sum of exponentials is an all-sum along the class axis, after each worker has
subtracted the largest logit of all (a constant: it changes no value and carries no gradient). The owner of class t adds
``-w_t x_t``; the first worker along the class axis adds ``w_t log sum``: partial losses that add up to the loss.
If the class dim is not cut, torch's own fused kernel is called.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import PartitionError
from ...operators.formats import HALVES
from ...partition import Partition
from ...torch_internals.operators import assert_async
from ..docstrings import arguments_of
from ..engine.agreement import agree_call, is_on
from ..engine.all_max import all_max
from ..engine.copy_and_sum import AllSum
from ..engine.plans import LayerPlan
from .loss import DistributedLoss, without_part


class DistributedCrossEntropyLoss(DistributedLoss):
    """`torch.nn.CrossEntropyLoss` of logits on `P_x`: class indices or class probabilities as targets.

    Parameters
    ----------
    P_x : the partition of the logits ``(batch, class, *space)``, or ``(class,)``; any axis may be longer than 1
    weight : one weight for each class of the global tensor, on every worker

    Class indices are cut like the logits but for the class dim: workers that differ only along the class axis pass
    the same targets. With ``reduction='none'`` and a cut class dim, the first worker along the class axis gets the
    losses of its samples, the others a zero-volume tensor, so that a sum over workers counts each loss once.

    Shape
    -----
    - input: ``(batch, class, *space)``, or ``(class,)``; this worker's block of it
    - target: class indices ``(batch, *space)``, or probabilities of the input's shape
    - loss: a scalar, the same on all workers; with ``reduction='none'`` a block of terms

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> gridwise.nn.DistributedCrossEntropyLoss(P_x)(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor(1.3863)
    """

    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    _settings: ClassVar[tuple[str, ...]] = ("reduction", "ignore_index", "label_smoothing")
    is_normalised = False
    """Whether the input is log-probabilities already."""

    @arguments_of(torch.nn.CrossEntropyLoss)
    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        self._copy_settings(P_x, template)

    def _copy_settings(self, P_x: Partition, template: torch.nn.Module) -> None:
        super()._copy_settings(P_x, template)
        self.class_dim = min(1, P_x.dim - 1)
        self._splits_classes = P_x.shape[self.class_dim] > 1

    def _check_settings(self) -> None:
        super()._check_settings()
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise PartitionError(f"`label_smoothing` (={self.label_smoothing}) must lie between 0 and 1.")

    # Set-up and checks

    def _distdl_module_setup(self, input: tuple[Tensor, Tensor]) -> None:
        super()._distdl_module_setup(input)
        self._block = self._layout.block(self.P_x.transport.rank)
        if self.weight is not None and self.weight.shape != (self._classes,):
            raise PartitionError(
                f"{self._title}: `weight` of shape {tuple(self.weight.shape)} needs one entry for each of "
                f"{self._classes} classes.\n  fix: give the weights of all classes, on every worker."
            )
        team = self.P_x.geometry.team_along(self.P_x.transport.rank, (self.class_dim,))
        self._class_team = tuple(sorted(team))
        self._is_first = self.P_x.transport.rank == team[0]
        if self._splits_classes:  # the number of classes was unknown when the targets were first checked
            problem = self._problem_with_values(input[1], self._classes)
            agree_call(self.P_x.transport, self._team, self._title, self._call_id.number, False, problem)

    @property
    def _classes(self) -> int:
        return self._layout.global_shape[self.class_dim]

    def _problem_with_target(self, x: Tensor, target: Tensor) -> str | None:
        if x.dim() != self.P_x.dim:
            return None  # the agreement on the layout reports this
        samples = x.shape[: self.class_dim] + x.shape[self.class_dim + 1 :]
        if target.is_floating_point() and not self.is_normalised:
            if self.ignore_index >= 0:
                return f"needs class indices as targets with `ignore_index` (={self.ignore_index}), got {target.dtype}"
            return super()._problem_with_target(x, target)
        if target.dtype not in (torch.int64, torch.uint8):
            other = "" if self.is_normalised else ", or class probabilities"
            return f"needs class indices of dtype int64{other}, got {target.dtype}"
        if target.shape != samples:
            shapes = f"of shape {tuple(samples)} for an input of shape {tuple(x.shape)}, got {tuple(target.shape)}"
            return f"needs a target {shapes}"
        if not self._splits_classes:
            return self._problem_with_values(target, x.shape[self.class_dim])
        plan = self._plan_at_hand((x, target), is_on())  # the current plan may be for another number of classes
        return None if plan is None else self._problem_with_values(target, self._classes_of(plan))

    def _common_plan(self, input: tuple) -> LayerPlan | None:
        plan = super()._common_plan(input)
        if plan is not None and self._splits_classes:  # not the plan for which the targets were checked
            problem = self._problem_with_values(input[1], self._classes_of(plan))
            agree_call(self.P_x.transport, self._team, self._title, self._call_id.number, False, problem)
        return plan

    def _classes_of(self, plan: LayerPlan) -> int:
        classes: int = plan.assigned["_layout"].global_shape[self.class_dim]
        return classes

    def _problem_with_values(self, target: Tensor, classes: int) -> str | None:
        if target.is_floating_point() or not target.numel() or target.is_meta:
            return None
        if target.is_cuda and self._distdl_is_setup:  # checked on the device, so that the host need not wait
            assert_async((((target >= 0) & (target < classes)) | self._ignored(target)).all())
            return None
        low, high = (int(end) for end in torch.aminmax(target))
        if low >= 0 and high < classes:
            return None
        wrong = target[((target < 0) | (target >= classes)) & ~self._ignored(target)]
        return (
            f"needs targets from 0 to {classes - 1} or `ignore_index`, got {int(wrong[0])}" if wrong.numel() else None
        )

    def _ignored(self, target: Tensor) -> Tensor:
        return target.long() == self.ignore_index  # in uint8, -100 would be class 156

    # The loss

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if self._is_outside:
            return without_part(input, self.reduction)
        if not self._splits_classes and self.reduction == "none":
            return self._whole(input, target, "none")
        if self._splits_classes:
            terms = self._partial(input.float() if input.dtype in HALVES else input, target)
            if self.reduction == "none":
                sum_terms = AllSum(self.P_x.transport, self._team, self._title, self._class_team)
                losses = self._move(terms, sum_terms, self._records, step=1).to(_result_dtype(input))
                return losses if self._is_first else losses.flatten()[:0]
            partial = terms.sum()
        elif input.dtype in HALVES:
            partial = self._whole(input, target, "none").sum(dtype=torch.float32)
        else:
            partial = self._whole(input, target, "sum")
        if self.reduction == "sum":
            return self._over_workers(partial).to(_result_dtype(input))
        if target.is_floating_point():
            total = self._over_workers(partial)
            return (total / (math.prod(self._shape) / max(self._classes, 1))).to(_result_dtype(input))
        loss, weights = self._over_workers(torch.stack([partial, self._weights_of(target, partial.dtype)])).unbind()
        return (loss / weights).to(_result_dtype(input))

    @property
    def _shape(self) -> tuple[int, ...]:
        return self._layout.global_shape

    def _whole(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        """The loss of this worker's samples where the class dim is not cut."""
        arguments: dict[str, Any] = {} if target.is_floating_point() else {"ignore_index": self.ignore_index}
        return F.cross_entropy(
            input, target, self.weight, reduction=reduction, label_smoothing=self.label_smoothing, **arguments
        )

    def _by_torch(self, input: Tensor, target: Tensor) -> Tensor:
        return self._whole(input, target, self.reduction)

    def _weights_of(self, target: Tensor, dtype: torch.dtype) -> Tensor:
        """This worker's part of the divisor of 'mean': its samples' weights, or 0 if another worker counts them."""
        if self._splits_classes and not self._is_first:
            return torch.zeros((), dtype=dtype, device=target.device)
        valid = ~self._ignored(target)
        if self.weight is None:
            return valid.sum().to(dtype)
        weights = self.weight[target.long().masked_fill(~valid, 0)]  # does not wait for the device
        return torch.where(valid, weights, 0).sum(dtype=dtype)

    def _partial(self, input: Tensor, target: Tensor) -> Tensor:
        """This worker's share of each sample's loss where the class dim is cut."""
        dim = self.class_dim
        mine = slice(self._block.start[dim], self._block.stop[dim])
        weight = None if self.weight is None else self.weight[mine].view([-1] + [1] * (input.dim() - dim - 1))
        shifted, log_sum = self._normalised(input)
        if target.is_floating_point():
            if self.label_smoothing:
                target = target * (1 - self.label_smoothing) + self.label_smoothing / self._classes
            terms = (log_sum.unsqueeze(dim) - shifted) * target
            return (terms if weight is None else terms * weight).sum(dim)
        ignored = self._ignored(target)
        losses = self._picked(shifted, log_sum, target.long().masked_fill(ignored, 0), ignored, mine)
        if not self.label_smoothing:
            return losses
        smooth = -(shifted if weight is None else shifted * weight).sum(dim)
        total = self._classes if self.weight is None else self.weight.sum()
        smooth = (smooth + torch.where(self._counted(ignored), log_sum * total, 0)).masked_fill(ignored, 0)
        return (1 - self.label_smoothing) * losses + self.label_smoothing / self._classes * smooth

    def _picked(self, shifted: Tensor, log_sum: Tensor, index: Tensor, ignored: Tensor, mine: slice) -> Tensor:
        """This worker's share of the terms of the targets themselves."""
        dim = self.class_dim
        here = (index >= mine.start) & (index < mine.stop) & ~ignored
        local = (index - mine.start).masked_fill(~here, 0).unsqueeze(dim)
        picked = shifted.gather(dim, local).squeeze(dim) if shifted.shape[dim] else shifted.sum(dim)  # 0
        losses = torch.where(here, -picked, torch.zeros_like(picked))
        losses = losses + torch.where(self._counted(ignored) & ~ignored, log_sum, 0)
        return losses if self.weight is None else losses * self.weight[index]

    def _counted(self, like: Tensor) -> Tensor:
        """Where this worker adds ``log sum``: everywhere if it is the first along the class axis, else nowhere.

        With `where`, the other workers stay in the graph, and so in its backward.
        """
        return torch.full_like(like, self._is_first)

    def _normalised(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """The logits minus the largest of all workers, and the logarithm of the sum of their exponentials."""
        dim = self.class_dim
        samples = input.shape[:dim] + input.shape[dim + 1 :]
        largest = input.detach().amax(dim) if input.shape[dim] else input.new_full(samples, -math.inf)
        shifted = input - all_max(largest, self.P_x.transport, self._class_team, self._title).unsqueeze(dim)
        whole = AllSum(self.P_x.transport, self._team, self._title, self._class_team)
        return shifted, self._move(shifted.exp().sum(dim), whole, self._records, step=2).log()


class DistributedNLLLoss(DistributedCrossEntropyLoss):
    """`torch.nn.NLLLoss` of log-probabilities on `P_x`; otherwise as `DistributedCrossEntropyLoss`.

    Parameters
    ----------
    P_x : the partition of the input, axes (batch, class, ...); the target is cut likewise, without the class axis
    weight, size_average, ignore_index, reduce, reduction : as in `torch.nn.NLLLoss`

    Shape
    -----
    - input: ``(batch, class, *space)``, or ``(class,)``; this worker's block of it
    - target: class indices ``(batch, *space)``
    - loss: a scalar, the same on all workers; with ``reduction='none'`` a block of terms

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> log_probability = torch.full((2, 4), 0.25).log()
    >>> gridwise.nn.DistributedNLLLoss(P_x)(log_probability, torch.tensor([0, 3]))
    tensor(1.3863)
    """

    is_normalised = True
    label_smoothing = 0.0
    _settings = ("reduction", "ignore_index")

    @arguments_of(torch.nn.NLLLoss)
    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        self._copy_settings(P_x, template)

    def _whole(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.nll_loss(input, target, self.weight, ignore_index=self.ignore_index, reduction=reduction)

    def _normalised(self, input: Tensor) -> tuple[Tensor, Tensor]:
        return input, torch.zeros_like(input.detach().sum(self.class_dim))


def _result_dtype(input: Tensor) -> torch.dtype:
    """The dtype of torch's loss: float32 for half precision under autocast, else the input's."""
    lifted = input.dtype in HALVES and torch.is_autocast_enabled(input.device.type)
    return torch.float32 if lifted else input.dtype
