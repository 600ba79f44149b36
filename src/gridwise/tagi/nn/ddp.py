"""Data-parallel training: every worker has a replica of the network and its own samples.

    config = DDPConfig(device_ids=[], backend="gloo", rank=P.rank, world_size=P.size)
    net = DDPSequential(model, config, average=False)
    net(x)                                               this worker's samples; batch norm uses all workers'
    updater.update(net.output_z_buffer, y, noise, net.input_delta_z_buffer)
    net.backward()                                       this worker's innovations; sums over all workers
    net.step()

With `average=False` this is TAGI with one large batch, up to rounding, for any number of workers and of samples on
each, including none. The cap of a step follows the size of that large batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import ArgumentError
from ...partition import world
from ..distributed.network import NetworkOnWorkers, check_input
from ..distributed.replicas import Replicas
from .data_struct import Values
from .gaussian import Gaussian
from .sequential import Sequential, returned

BACKENDS = ("nccl", "gloo", "mpi")


@dataclass(frozen=True, eq=False)
class DDPConfig:
    """Settings of data-parallel training.

    Parameters
    ----------
    device_ids
        The GPUs of the workers: worker r takes number r modulo their count. Used with backend 'nccl' only.
    backend
        'nccl' on GPUs; 'gloo' or 'mpi' on any device, depending on how the workers were started.
    rank, world_size
        The number of this worker, and how many there are, as in `gridwise.world()`.

    Examples
    --------
    >>> config = gridwise.tagi.nn.DDPConfig(device_ids=[], backend='gloo', rank=0, world_size=1)
    """

    device_ids: Sequence[int]
    backend: str = "nccl"
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            allowed = ", ".join(map(repr, BACKENDS))
            raise ArgumentError(f"DDPConfig: `backend` (={self.backend!r}) is one of {allowed}.")
        if not 0 <= self.rank < self.world_size:
            places = f"0 to {self.world_size - 1} (`world_size` - 1)"
            raise ArgumentError(f"DDPConfig: `rank` (={self.rank}) is not one of {places}.")
        object.__setattr__(self, "device_ids", [int(i) for i in self.device_ids])
        if any(i < 0 for i in self.device_ids):
            raise ArgumentError(f"DDPConfig: `device_ids` (={self.device_ids}) are numbers of GPUs, from 0 on.")


class DDPSequential(NetworkOnWorkers):
    """A `Sequential` trained on all workers of the world, each with its own samples.

    Parameters
    ----------
    model
        The network, built alike on all workers; its parameters and running statistics become those of worker 0.
    config
        The workers and their backend.
    average
        Whether the parameters' innovations are averaged over the workers, as in the original by default. False adds
        them up: TAGI with one large batch.

    Notes
    -----
    `backward` synchronises: per step, one small agreement, and the sums in messages of a few megabytes that are sent
    while backward goes on. Each `BatchNorm2d` sends two short vectors in forward. In training mode all workers call
    `forward`, `backward` and `step` together, with an empty batch where one has run out of samples; in evaluation mode
    nothing is sent. `TrainStep(net.model)` works too, uncompiled, and so do the estimators, each worker with its own
    rows.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> config = nn.DDPConfig(device_ids=[], backend='gloo', rank=0, world_size=1)
    >>> net = nn.DDPSequential(nn.Sequential(nn.Linear(3, 1)), config, average=False)
    >>> mu, var = net(np.ones((2, 3), dtype='float32'))
    >>> mu.shape
    (2,)
    """

    def __init__(self, model: Sequential, config: DDPConfig, average: bool = True) -> None:
        self.model, self.config, self.average = model, config, average
        P_world = world()
        transport = P_world.transport
        scale = 1.0 / P_world.size if average else 1.0
        problem = _problem_with(config, transport.name, P_world.rank, P_world.size)
        if config.backend == "nccl" and problem is None:
            ids = config.device_ids or list(range(torch.cuda.device_count()))
            model.to(f"cuda:{ids[config.rank % len(ids)]}")
        self._replicas = Replicas(model, transport, P_world.team, "DDPSequential", scale, problem)
        self._tried: tuple[torch.Size, bool] | None = None

    @torch.no_grad()
    def forward(self, mu_x: Values, var_x: Values | None = None) -> Any:
        """Mean and variance of the output for this worker's samples: arrays for arrays, tensors for tensors.

        Parameters
        ----------
        mu_x
            Means of this worker's inputs: a tensor (batch, ...), or a NumPy array of that shape or flat.
        var_x
            Variances of the same shape; None for inputs known exactly.
        """
        if not self.model.training:
            return self.model(mu_x, var_x)
        x = self._replicas.agreed("forward", lambda: self._input(mu_x, var_x))
        return returned(self.model.infer(x), mu_x)

    def _input(self, mu_x: Values, var_x: Values | None) -> Gaussian:
        x = self.model._input(mu_x, var_x)
        kind = (x.mu.shape[1:], x.var is None)
        if kind != self._tried and len(self._replicas.team) > 1:
            self._tried = None
            check_input(self.model, x)
        self._tried = kind
        return x

    @torch.no_grad()
    def backward(self) -> None:
        """Compute the innovations of this worker's units, and those of the parameters summed over all workers."""
        problem = self._problem_with_backward()
        self._replicas.begin(problem)
        self.model.backward()
        self._replicas.finish()

    def get_device_with_index(self) -> str:
        """The device of this worker's network: 'cpu', 'cuda:0', ..."""
        device = torch.device(self.model.device)
        return f"cuda:{device.index or 0}" if device.type == "cuda" else str(device)


def _problem_with(config: DDPConfig, transport: str, rank: int, size: int) -> str | None:
    if config.backend == "nccl" and not torch.cuda.is_available():
        return "`backend` (='nccl') needs CUDA, and there is none here; fix: backend='gloo', or 'mpi' under mpiexec"
    if (config.rank, config.world_size) != (rank, size):
        return (
            f"`rank` (={config.rank}) and `world_size` (={config.world_size}) are not those of this worker, "
            f"{rank} of {size}; fix: P = gridwise.world(); DDPConfig(..., rank=P.rank, world_size=P.size)"
        )
    if size > 1 and config.backend not in transport.split("+"):
        started = [name for name in transport.split("+") if name in BACKENDS]
        return (
            f"`backend` (={config.backend!r}), but these workers were started over {transport!r}; "
            f"fix: {' or '.join(f'backend={name!r}' for name in started)}"
        )
    wrong = [i for i in config.device_ids if config.backend == "nccl" and i >= torch.cuda.device_count()]
    return f"`device_ids` (={config.device_ids}) names GPU {wrong[0]}, which is not here" if wrong else None
