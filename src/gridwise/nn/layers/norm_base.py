"""The base of norms: the agreement on the input, and parameters and running statistics cut like the channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import PartitionError
from ...grid import Grid, Layout
from ...partition import Partition
from ..engine.agreement import Structure, agree_layout
from ..engine.arguments import problem_with_tensor
from ..engine.layer import Layer
from ..parameters.blocks import Sharding
from .standardise import Normalisation, ReplicatedValue, Sets


class Norm(Layer):
    """The common base of norms: how a call normalises rows by statistics of sets.

    Batch and instance norm have a weight, a bias and running statistics for each channel (`_build_channels`).
    """

    sequential: ClassVar[type[torch.nn.Module]]
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    eps: float
    P_x: Partition
    _sets: Sets
    """Set by set-up."""

    def _problem_with(self, input: tuple) -> str | None:
        return problem_with_tensor(input)

    def _agree(self, x: Tensor) -> Layout:
        layout, agreed = agree_layout(self.P_x.transport, self._team, self._title, self.P_x.geometry, x)
        self._agreed: Structure = agreed
        return layout

    def _sets_over(self, layout: Layout, axes: Sequence[int], count: int) -> Sets:
        members = tuple(sorted(layout.grid.team_along(self.P_x.transport.rank, axes)))
        return Sets(self.P_x.transport, self._team, self._title, members, count)

    def _normalisation(self, *parameters: Tensor | None, shared: ReplicatedValue | None = None) -> Normalisation:
        """How this call normalises, with these parameters."""
        wants = any(p is not None and p.requires_grad for p in parameters)
        records = torch.is_grad_enabled() and (wants or self._agreed.requires_grad)
        return Normalisation(self._sets, self.eps, self._call_id, records, shared)

    # Batch and instance norm

    def _build_channels(
        self,
        P_x: Partition,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        bias: bool,
    ) -> None:
        self.P_x, self.num_features, self.eps, self.momentum = P_x, num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._takes_part(P_x, signature=self.extra_repr())
        self._grid = self._grid_with_batch()

        def make(device: torch.device | str | None) -> torch.nn.Module:
            layer = self.sequential(num_features, eps, momentum, affine, track_running_stats, device, dtype)
            return layer if bias else without_bias(layer)

        def shardings(layer: torch.nn.Module) -> dict[str, Sharding]:
            along_channels = Sharding(self._grid, (1,), (num_features,))
            names = ("weight", "bias", "running_mean", "running_var")
            return {**dict.fromkeys(names, along_channels), "num_batches_tracked": Sharding(self._grid, (), ())}

        self._build(make, shardings, device, self._problem_with_grid())

    def _grid_with_batch(self) -> Grid:
        """The grid of the input, with an axis for the batch."""
        return self.P_x.geometry

    def _problem_with_grid(self) -> str | None:
        raise NotImplementedError

    def _problem_with_state(self, input: tuple) -> str | None:
        mean, var = (self._buffers.get(name) is None for name in ("running_mean", "running_var"))
        # Torch takes both or neither, though some of its kernels take one in training.
        problem = None if mean == var else "needs both `running_mean` and `running_var`, or none"
        return super()._problem_with_state(input) or problem

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


def without_bias(layer: torch.nn.Module) -> torch.nn.Module:
    """The layer without its bias; only later versions of torch's norms have an argument for that."""
    layer.register_parameter("bias", None)
    return layer


def check_cut_like_parameters(title: str, layout: Layout, dim: int, extent: int) -> None:
    """Raise unless dim `dim` of the input has the parameters' extent and is cut like them, into balanced blocks."""
    found = layout.global_shape[dim]
    if found != extent:
        raise PartitionError(f"{title} needs an extent of {extent} along dim {dim} of the global input, got {found}.")
    balanced = Layout.balanced(layout.grid, layout.global_shape).cuts[dim]
    if layout.cuts[dim] != balanced:
        raise PartitionError(
            f"{title} has its parameters in blocks {balanced}, the input is cut along dim {dim} at {layout.cuts[dim]}.\n"
            "  fix: Repartition the input to balanced blocks first."
        )
