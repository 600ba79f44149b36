"""Batch norm under DistDL's names: `gamma` and `beta`, of shape (1, channels, 1, ...), on the workers that own them.

Gridwise does the computation. The running variance follows the batch variance without the correction by n / (n - 1), as
in DistDL but not in torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from gridwise.errors import PartitionError
from gridwise.nn.layers.batchnorm import DistributedBatchNorm as GridwiseBatchNorm
from gridwise.nn.layers.standardise import Running
from gridwise.partition import Partition

from ...notes import note
from ..backends.mpi.partition import plain
from .root_parameters import RootParameters, own_generators, placeholder_for

STATISTICS = ("running_mean", "running_var")


class DistributedBatchNorm(RootParameters, GridwiseBatchNorm):
    """Batch norm of tensors ``(batch, channel, ...)`` on `P_x`."""

    NAMES: ClassVar[dict[str, str]] = {"weight": "gamma", "bias": "beta"}

    _keeps_plans = True
    _is_torchs_own = False  # torch tracks the corrected variance

    def __init__(
        self,
        P_x: Partition,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        P = plain(P_x)
        if momentum is None:
            raise PartitionError("`momentum` (=None) must be a number.")
        with own_generators(self):
            super().__init__(P, num_features, eps, momentum, affine, track_running_stats)
        self._buffers["num_batches_tracked"] = None
        self._kept = (1, -1, *(1,) * (P.dim - 2))
        self._hide()
        for name, shown in self.NAMES.items():
            if (value := self._parameters.pop(name, None)) is not None:
                self.register_parameter(shown, torch.nn.Parameter(value.detach().view(self._kept).clone()))
            elif name in self._buffers:
                self._buffers[shown] = self._buffers.pop(name)
            else:
                self.register_parameter(shown, None)
        for name in STATISTICS:
            if self._buffers.get(name) is not None:
                self._buffers[name] = self._buffers[name].view(self._kept)  # type: ignore[union-attr]
        if track_running_stats:
            note(
                "distdl.nn.DistributedBatchNorm",
                "its running variance follows the uncorrected batch variance, as in DistDL; gridwise.nn and torch "
                "correct it by n / (n - 1).",
            )

    def _take_from_owners(self) -> None:
        with self._under_own_names():
            super()._take_from_owners()

    @contextmanager
    def _replicas_in_place(self) -> Iterator[None]:
        with self._under_own_names(), super()._replicas_in_place():
            yield

    @contextmanager
    def _under_own_names(self) -> Iterator[None]:
        """In the body, parameters and statistics are one-dimensional views, under the names of torch's layer."""
        if "weight" in self._parameters or "weight" in self._buffers:  # already
            yield
            return
        shown = {name: self._parameters.pop(name) for name in self.NAMES.values() if name in self._parameters}
        unseen = {name: self._buffers.pop(name) for name in self.NAMES.values() if name in self._buffers}
        kept: dict[str, Tensor | None] = {name: self._buffers[name] for name in STATISTICS}
        for name, own in self.NAMES.items():
            if own in shown:
                value = shown[own]
                self._parameters[name] = None if value is None else value.view(-1)  # type: ignore[assignment]
            else:
                self._buffers[name] = unseen[own]
        for name, statistic in kept.items():
            self._buffers[name] = None if statistic is None else statistic.view(-1)
        try:
            yield
        finally:
            for name in self.NAMES:
                self._parameters.pop(name, None)
                self._buffers.pop(name, None)
            self._parameters.update(shown)
            self._buffers.update(unseen)
            self._buffers.update(kept)

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        super()._distdl_module_setup(input)
        self._is_filled = False  # torch's fused kernels track the corrected variance

    def _running(self) -> Running:
        return super()._running()._replace(is_corrected=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        torch.nn.Module._apply(self, fn, recurse)
        replicas = self.__dict__["_replica_of"]
        for name in replicas:
            replicas[name] = type(replicas[name])(fn(replicas[name].data), replicas[name].requires_grad)
            self._buffers[self.NAMES[name]] = placeholder_for(replicas[name])
        self.__dict__["_sent"].clear()
        return self
