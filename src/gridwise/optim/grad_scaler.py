"""Loss scaling in which all workers decide together whether to skip a step.

An overflow may show in the gradients of some workers only. If they skipped the step and others did not, replicas and scales
would diverge. Here the workers agree whether any gradient is infinite, with one small collective per step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..comm.agreement import largest
from ..partition import Partition, world


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` for models on a grid; all workers of `P` use one, with the same arguments.

    Parameters
    ----------
    device, init_scale, growth_factor, backoff_factor, growth_interval, enabled : as in torch
    P : the workers that train the model; default: the world

    Examples
    --------
    >>> scaler = gridwise.optim.GradScaler("cpu", init_scale=8.0)
    >>> scaler.scale(torch.ones(()))
    tensor(8.)
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        P: Partition | None = None,
    ) -> None:
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._partition = P or world()

    def _unscale_grads_(self, *args: Any, **kwargs: Any) -> dict[torch.device, Tensor]:
        found = super()._unscale_grads_(*args, **kwargs)
        bad, partition = int(any(bool(flag.item()) for flag in found.values())), self._partition
        if partition.active:
            (bad,) = largest(partition.transport, partition.team, "GradScaler", bad)
        if not found:  # a worker without gradients of its own follows the others
            assert self._scale is not None
            found = {self._scale.device: torch.zeros((), device=self._scale.device)}
        for flag in found.values():
            flag.fill_(float(bad))
        return found
