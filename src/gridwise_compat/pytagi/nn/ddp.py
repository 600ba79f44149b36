"""pytagi's data-parallel network: Gridwise's own, around one of pytagi's networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gridwise.partition import world
from gridwise.tagi.nn import ddp as own
from gridwise.tagi.nn.data_struct import of_anything
from gridwise.tagi.nn.ddp import BACKENDS

from ...notes import note
from .data_struct import BaseDeltaStates as BaseDeltaStates
from .data_struct import BaseHiddenStates as BaseHiddenStates
from .sequential import Sequential


class DDPConfig:
    """Settings of data-parallel training, which may be changed until a network is made with them."""

    def __init__(self, device_ids: Sequence[int], backend: str = "nccl", rank: int = 0, world_size: int = 1) -> None:
        own.DDPConfig(device_ids, backend, rank, world_size)  # raises if they are wrong
        self.device_ids, self.backend, self.rank, self.world_size = list(device_ids), backend, rank, world_size


class DDPSequential:
    """A network trained on all workers, each with its own samples; shares its layers and buffers with `model`."""

    def __init__(self, model: Sequential, config: DDPConfig, average: bool = True) -> None:
        self.model, self.config, self.average = model, config, average
        self._ddp = own.DDPSequential(model._layer, _available_config(config), average)

    def forward(self, mu_x: object, var_x: object = None) -> Any:
        """Flat means and variances of this worker's outputs."""
        mu = of_anything(mu_x).reshape(-1)
        rows = mu.reshape(-1, *self.model._shape_of_sample(mu.numel()))
        return self._ddp.forward(rows.numpy(), None if var_x is None else of_anything(var_x).numpy())

    def __call__(self, mu_x: object, var_x: object = None) -> Any:
        return self.forward(mu_x, var_x)

    def state_dict(self) -> Any:
        """{'Linear.0': (mu_w, var_w, mu_b, var_b)}, flat lists."""
        return self.model.state_dict()

    def __getattr__(self, name: str) -> Any:
        if name == "_ddp" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._ddp, name)


def _available_config(config: DDPConfig | own.DDPConfig) -> own.DDPConfig:
    """`config`, with the workers' own transport if it asks for NCCL and there is no GPU."""
    if config.backend != "nccl" or torch.cuda.is_available():
        return own.DDPConfig(config.device_ids, config.backend, config.rank, config.world_size)
    transport = world().transport.name
    note("pytagi.nn.DDPConfig", f"there is no GPU for backend='nccl'; the workers use {transport!r}, on the CPU.")
    backend = next((name for name in transport.split("+") if name in BACKENDS), "gloo")
    return own.DDPConfig([], backend, config.rank, config.world_size)
