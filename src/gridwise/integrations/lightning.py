"""Lightning: `Trainer(strategy=GridStrategy(grid=(1, 1, 2, 2)))`, with a LightningModule as it is.

The workers are there already, one process each; all of them run the Trainer, draw the same batches, and keep equal
parameters. Hooks and callbacks see whole batches and whole outputs, as on one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..comm.agreement import check_same_call, largest
from ..comm.launching.local_device import device as own_device
from ..comm.launching.local_device import local_rank
from ..errors import ArgumentError, PartitionError, UnsupportedError
from ..models.model import DistributedModel
from ..nn.engine.module import Module as DistributedLayer
from ..nn.parameters.no_sync import no_sync
from ..nn.parameters.replicas import synchronise_replicas
from ..partition import CartesianPartition, PartitionLike, as_partition, world
from .libraries import library
from .trainers import batches, states
from .trainers.metrics import Metrics, without_sync
from .trainers.own_steps import comparing_logs
from .trainers.scaling import deciding_together
from .trainers.steps import RecordedStep, refuse_unsupported

ClusterEnvironment: Any = library("lightning.fabric.plugins.environments").ClusterEnvironment
ParallelStrategy: Any = library("lightning.pytorch.strategies").ParallelStrategy
is_overridden: Any = library("lightning.pytorch.utilities.model_helpers").is_overridden
rank_zero_only: Any = library("lightning.pytorch.utilities").rank_zero_only
pl_worker_init_function: Any = library("lightning.fabric.utilities.seed").pl_worker_init_function

Outputs = Literal["whole", "blocks"]
REDUCED: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "avg": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
}


class GridEnvironment(ClusterEnvironment):
    """The workers of `gridwise.world()`, which were started by mpiexec, torchrun, Slurm or `gridwise run`."""

    main_address, main_port = "127.0.0.1", 0  # nobody connects: the workers are connected already
    creates_processes_externally = True

    @staticmethod
    def detect() -> bool:
        return True

    def world_size(self) -> int:
        return world().size

    def global_rank(self) -> int:
        return world().rank

    def local_rank(self) -> int:
        return local_rank()

    def node_rank(self) -> int:
        """0 on the first machine, 1 on any other."""
        return int(self.global_rank() != self.local_rank())

    def set_world_size(self, size: int) -> None:
        return None

    def set_global_rank(self, rank: int) -> None:
        return None


class GridStrategy(ParallelStrategy):
    """A strategy for Lightning's Trainer: every batch is cut over a grid of workers.

    The LightningModule stays as it is. Each of its steps is recorded as a whole, the loss included, and gives the numbers
    that it gives on one process. A module with parts that `gridwise.distribute` or `gridwise.nn` has made runs its steps as
    they are written, on blocks. Start the workers with ``gridwise run``, torchrun or mpiexec, and give the Trainer
    ``devices=1``.

    Parameters
    ----------
    grid : the shape of the grid of all workers, or a partition of them: an axis for each dim of the input, so (1, 1, 2, 2)
        cuts the rows and columns of images into two parts each
    outputs : "whole": what a step returns comes whole to hooks and to `Trainer.predict`, on every worker. "blocks": each
        worker gets its part, which lies on `P_of` that step

    Attributes
    ----------
    P_x : the partition of the inputs

    Examples
    --------
    >>> import lightning
    >>> from gridwise.integrations.lightning import GridStrategy
    >>> strategy = GridStrategy(grid=(1, 1, 1, 1))  # on four workers (1, 1, 2, 2), say
    >>> trainer = lightning.Trainer(strategy=strategy, devices=1, accelerator="cpu", logger=False)
    """

    strategy_name = "grid"
    is_distributed = False
    """For Lightning: samplers stay as they are, and what is logged is of the whole batch already."""

    def __init__(self, grid: PartitionLike, *, outputs: Outputs = "whole") -> None:
        super().__init__(cluster_environment=GridEnvironment())
        P_x = as_partition(grid, "GridStrategy", "grid")
        if not isinstance(P_x, CartesianPartition) or P_x.size != world().size:
            raise PartitionError(f"GridStrategy: `grid` (={P_x}) has to be a grid of all {world().size} workers.")
        if outputs not in ("whole", "blocks"):
            raise ArgumentError(f"GridStrategy: `outputs` (={outputs!r}) must be 'whole' or 'blocks'.")
        self.P_x, self.outputs = P_x, outputs
        self._steps: dict[str, RecordedStep] = {}
        self._metrics: Metrics | None = None
        self.set_world_ranks()

    def P_of(self, step: str) -> Any:
        """Where the outputs of a step lie, in the containers that it returns; None for scalars and before its first run.

        Parameters
        ----------
        step : "predict_step", say

        Examples
        --------
        >>> from gridwise.integrations.lightning import GridStrategy
        >>> GridStrategy(grid=(1, 1), outputs="blocks").P_of("predict_step")
        """
        return self._steps[step].run.P_y[0] if step in self._steps else None

    # Workers and devices

    def set_world_ranks(self) -> None:
        """Let only the first worker print and log."""
        rank_zero_only.rank = self.global_rank

    @property
    def root_device(self) -> torch.device:
        if self.accelerator is not None and type(self.accelerator).__name__ == "CUDAAccelerator":
            return own_device()
        return torch.device("cpu")

    def model_to_device(self) -> None:
        self.model.to(self.root_device)

    def setup(self, trainer: Any) -> None:
        module = self.lightning_module
        self._steps.clear()
        self._metrics = None
        if not _has_distributed_parts(module):
            refuse_unsupported(module)
            self._metrics = Metrics(module)
        without_sync(module)
        self._scale_together()
        synchronise_replicas(module, self.P_x)
        super().setup(trainer)

    def _scale_together(self) -> None:
        """Let the workers decide together whether to skip a step of mixed precision."""
        scaler = getattr(self.precision_plugin, "scaler", None)
        if isinstance(scaler, torch.amp.GradScaler):
            self.precision_plugin.scaler = deciding_together(scaler, self.precision_plugin.device, self.P_x)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """While gradients are accumulated, leave their sum over the workers to the last backward."""
        with no_sync():
            yield

    # Batches

    def process_dataloader(self, dataloader: Any) -> Any:
        sampler = getattr(dataloader, "sampler", None)
        if isinstance(sampler, torch.utils.data.DistributedSampler) and sampler.num_replicas > 1:
            raise UnsupportedError(
                "GridStrategy: the DataLoader has a DistributedSampler, which gives each worker other samples.",
                fix="leave it out: all workers draw the same batches, and each keeps its block of them.",
            )
        if int(os.environ.get("PL_SEED_WORKERS", "0")) and getattr(dataloader, "worker_init_fn", 0) is None:
            dataloader.worker_init_fn = partial(pl_worker_init_function, rank=0)  # the same numbers on all workers
        return dataloader

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """The batch as it is: a step takes this worker's block of it to the device.

        If hooks of the user move it, or change it afterwards, they get all of it.
        """
        holders = (self.lightning_module, self.lightning_module.trainer.datamodule)
        hooks = ("transfer_batch_to_device", "on_after_batch_transfer")
        if any(is_overridden(hook, holder) for holder in holders if holder is not None for hook in hooks):
            return super().batch_to_device(batch, device, dataloader_idx)
        return batch

    # Steps

    def training_step(self, batch: Any, *rest: Any) -> Any:
        with self.precision_plugin.train_step_context():
            return self._step("training_step", batch, rest)

    def validation_step(self, batch: Any, *rest: Any) -> Any:
        with self.precision_plugin.val_step_context():
            return self._step("validation_step", batch, rest)

    def test_step(self, batch: Any, *rest: Any) -> Any:
        with self.precision_plugin.test_step_context():
            return self._step("test_step", batch, rest)

    def predict_step(self, batch: Any, *rest: Any) -> Any:
        with self.precision_plugin.predict_step_context():
            return self._step("predict_step", batch, rest)

    def _step(self, name: str, batch: Any, rest: tuple[Any, ...]) -> Any:
        batches.check_same(batch, self.P_x)
        mine = batches.cut(batch, self.P_x, self.root_device)
        if self._metrics is None:
            with comparing_logs(self.lightning_module, self.P_x):
                return getattr(self.lightning_module, name)(mine, *rest)
        if name not in self._steps:
            self._steps[name] = RecordedStep(self.lightning_module, name, self.P_x, self._metrics)
        return self._steps[name](mine, *rest, whole=self.outputs == "whole")

    # Values of all workers

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        name = str(getattr(reduce_op, "name", reduce_op)).rpartition(".")[2].lower()
        if name not in REDUCED:
            raise ArgumentError(
                f"GridStrategy.reduce: `reduce_op` (={reduce_op!r}) must be one of {', '.join(REDUCED)}."
            )
        if not isinstance(tensor, Tensor):
            return tensor
        rows = self.all_gather(tensor)
        rows = rows if name in ("sum", "max", "min") or rows.is_floating_point() else rows.float()
        return REDUCED[name](rows, dim=0)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """The tensors of all workers, stacked along a new first dim; they must have one shape."""
        if sync_grads:
            raise UnsupportedError(
                "GridStrategy.all_gather: `sync_grads` (=True).", fix="gridwise.nn.functional.all_gather."
            )
        P, what = self.P_x, "GridStrategy.all_gather"
        check_same_call(P.transport, P.team, what, f"{what} {tuple(tensor.shape)} {tensor.dtype}")
        rows = P.transport.all_gather(tensor.detach().contiguous().flatten(), P.team, what)
        return rows.reshape(P.size, *tensor.shape)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        what = "a decision of the Trainer"
        check_same_call(self.P_x.transport, self.P_x.team, what, what)
        (found,) = largest(self.P_x.transport, self.P_x.team, what, bool(decision) ^ all)
        return bool(found) ^ all

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return states.from_first(obj, world(), "a value of the Trainer", src)

    def barrier(self, name: str | None = None) -> None:
        world().barrier()

    # Checkpoints

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        if storage_options is not None:
            raise UnsupportedError("GridStrategy: checkpoints have no `storage_options`.", fix="leave them out.")
        states.refuse_cut(self.lightning_module)
        states.save(filepath, checkpoint, self.P_x)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """What was saved on any grid, or, from a file, by Lightning on one process."""
        if Path(checkpoint_path).is_file():
            return super().load_checkpoint(checkpoint_path, weights_only)
        return states.load(checkpoint_path, self.P_x)


def _has_distributed_parts(module: torch.nn.Module) -> bool:
    return any(isinstance(part, DistributedModel | DistributedLayer) for part in module.modules())
