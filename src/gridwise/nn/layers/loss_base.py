"""Losses of tensors that lie on a grid: each worker sums the terms of its block, and one number is made of them.

    loss = sum over all workers of (the terms of its block) / (how many there are in all)

Two conventions, and both are sums:

* The scalar of a layer here is ONE global loss that all workers of `P_x` see. `loss.backward()` on all of them is one
  backward of it; the cotangent counts once, not P times (`global_sum`).
* A loss that a user makes of local terms, such as ``(y - t).square().sum()`` on each worker, or of ``reduction='none'``,
  is the sum of these terms over the workers. Divide by the global count, not by that of the block.

A worker outside `P_x` gets a zero that requires grad, so that the same script calls `backward` everywhere. `loss` has the
losses of elements, `cross_entropy` those over classes.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import _reduction

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

Flag = bool | None
"""Of `size_average` and `reduce`, which torch takes still instead of `reduction`."""
Argument = bool | int | float | Tensor | None
"""Torch's other arguments of a loss."""


class DistributedLoss(Module):
    """What the losses share: torch's `reduction`, and the sum over the workers.

    A subclass gives the terms of its block in `_terms`. The input is a block of a tensor on `P_x`; the target has the
    same blocks.
    """

    P_x: Partition
    _layout: Layout
    """Of the input; there is one once the loss is set up."""
    reductions: tuple[str, ...] = ("none", "mean", "sum")
    _keeps_plans = True
    _settings: ClassVar[tuple[str, ...]] = ("reduction",)
    _fixed = ("P_x",)

    def __init__(self, P_x: Partition, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean") -> None:
        self._init(P_x, size_average, reduce, reduction)

    def _init(self, P_x: Partition, size_average: Flag, reduce: Flag, reduction: str, **arguments: Argument) -> None:
        """What every constructor does; `arguments` are torch's others, tensors among them become buffers."""
        super().__init__()
        if size_average is not None or reduce is not None:
            reduction = _reduction.legacy_get_string(size_average, reduce)
        self._check_reduction(reduction)
        self.P_x, self.reduction = P_x, reduction
        self._records = False
        for name, value in arguments.items():
            if name in self._settings:
                setattr(self, name, value)
            else:
                self.register_buffer(name, value)  # type: ignore[arg-type]  # torch refuses what is no tensor
        shown = {name: tuple(v.shape) if isinstance(v, Tensor) else v for name, v in arguments.items()}
        words = [f"reduction={reduction!r}", *(f"{name}={value}" for name, value in shown.items())]
        self._takes_part(P_x, signature=", ".join(words))

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

    def __setattr__(self, name: str, value: object) -> None:
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
            return without_part(input, self.reduction)
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
        shape = self._layout.global_shape
        return shape[0] if self.reduction == "batchmean" else math.prod(shape)

    def _over_workers(self, partial: Tensor) -> Tensor:
        """The one sum of everyone's `partial`."""
        return self._move(partial, GlobalSum(self.P_x.transport, self._team, self._says), self._records)

    def _distdl_module_setup(self, input: tuple[Tensor, Tensor]) -> None:
        self._check_reduction(self.reduction)
        x, target = input
        grid = self.P_x.grid
        self._layout, agreed = agree_layout(self.P_x.transport, self._team, self._says, grid, x)
        self._records = agreed.requires_grad
        if target.dim() == x.dim():
            _, wants = agree_layout(self.P_x.transport, self._team, f"{self._says}, its target,", grid, target)
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


def without_part(input: Tensor, reduction: str) -> Tensor:
    """What a worker outside the partition gets: nothing, joined to its graph so that `backward` can be called."""
    if reduction == "none":
        return input.clone()
    zero = input.sum() * 0
    return zero if zero.requires_grad or not torch.is_grad_enabled() else zero.requires_grad_()
