"""Accelerate: `GridAccelerator(grid=(1, 1, 2, 2))`, for training loops that are written with an Accelerator.

To Accelerate each worker is a process on its own, so that it wraps no model and shares out no samples; batches are cut, and
the function that computes the loss is made by `gridwise.distribute`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from ..comm.launching.local_device import device as own_device
from ..comm.launching.local_device import local_rank
from ..errors import PartitionError, UnsupportedError
from ..models.model import DistributedModel
from ..models.recording.containers import flatten
from ..models.recording.tracing import is_fake
from ..nn.parameters.no_sync import no_sync
from ..nn.parameters.replicas import synchronise_replicas
from ..partition import CartesianPartition, PartitionLike, as_partition, world
from .libraries import library
from .trainers import batches
from .trainers.own_steps import compare
from .trainers.scaling import deciding_together

Accelerator: Any = library("accelerate").Accelerator
state: Any = library("accelerate.state")

OF_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Variables by which Accelerate finds that a process is one of several."""


def one_process_each(cpu: bool = False) -> None:
    """Let Accelerate take each worker for a process on its own, of which only the first prints and saves.

    `GridAccelerator` and `GridTrainingArguments` do so themselves. Otherwise call it before anything of Accelerate is made.

    Parameters
    ----------
    cpu : whether workers compute on the CPU even if there are devices

    Examples
    --------
    >>> from gridwise.integrations.accelerate import one_process_each
    >>> one_process_each()
    """
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()
    alone = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHERS}
    device = torch.device("cpu") if cpu else own_device()
    with patch.dict(os.environ, alone, clear=True):
        found = state.PartialState(cpu=device.type == "cpu")
    found.device, found.process_index, found.local_process_index = device, world().rank, local_rank()


class GridAccelerator(Accelerator):
    """An Accelerator of which every batch is cut over a grid of workers.

    Models that `prepare` gets stay as they are: give the function that computes the loss with them to
    `gridwise.distribute`. DataLoaders give this worker's block of each batch.

    Parameters
    ----------
    grid : the shape of the grid of all workers, or a partition of them, with an axis for each dim of the input
    **options : those of Accelerate's Accelerator

    Attributes
    ----------
    P_x : the partition of the batches

    Examples
    --------
    >>> from gridwise.integrations.accelerate import GridAccelerator
    >>> accelerator = GridAccelerator(grid=(1, 1))  # on four workers (2, 2), say
    >>> model, data = torch.nn.Linear(3, 1), torch.utils.data.DataLoader(torch.ones(4, 3), 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model, optimizer, data = accelerator.prepare(model, optimizer, data)
    >>> loss_of = gridwise.distribute(lambda x: model(x).square().mean(), accelerator.P_x)
    >>> for x in data:
    ...     accelerator.backward(loss_of(x))
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    """

    P_x: CartesianPartition

    def __init__(self, grid: PartitionLike, **options: Any) -> None:
        one_process_each(bool(options.get("cpu")))
        super().__init__(**options)
        put_on_grid(self, grid)

    def prepare_model(self, model: torch.nn.Module, device_placement: bool | None = None, **options: Any) -> Any:
        if any(isinstance(part, DistributedModel) for part in model.modules()):
            if self.native_amp:
                raise UnsupportedError(
                    f"GridAccelerator.prepare: {type(model).__name__} is distributed, and its `forward` cannot be put under "
                    "autocast.",
                    fix="prepare the model before gridwise.distribute gets it, or a function that calls it.",
                )
            model = model.to(self.device)
            self._models.append(model)
            return model
        synchronise_replicas(model, self.P_x)
        model = super().prepare_model(model, device_placement, **options)
        if not isinstance(vars(model).get("forward"), OnlyRecorded):
            model.forward = OnlyRecorded(model.forward, type(model).__name__)
        return model

    def prepare_data_loader(self, data_loader: Any, device_placement: bool | None = None, *rest: Any) -> Any:
        if isinstance(getattr(data_loader, "sampler", None), torch.utils.data.DistributedSampler):
            raise UnsupportedError(
                "GridAccelerator.prepare: the DataLoader has a DistributedSampler, which gives each worker other samples.",
                fix="leave it out: all workers draw the same batches, and each keeps its block of them.",
            )
        if isinstance(data_loader, CutBatches):
            return data_loader
        return CutBatches(super().prepare_data_loader(data_loader, False, *rest), self.P_x, self.device)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        whole = dataloader.loader if isinstance(dataloader, CutBatches) else dataloader
        return CutBatches(super().skip_first_batches(whole, num_batches), self.P_x, self.device)

    @contextmanager
    def no_sync(self, model: Any = None) -> Iterator[None]:
        with no_sync():
            yield

    def gather(self, tensor: Any) -> Any:
        """Numbers of the whole batch, as a loss is, are on all workers already; blocks are refused."""
        return self._of_whole(tensor, "gather")

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        return self._of_whole(input_data, "gather_for_metrics")

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        return self._of_whole(tensor, "reduce")

    def _of_whole(self, value: Any, method: str) -> Any:
        if any(x.dim() for x in flatten(value)[0]):
            raise UnsupportedError(
                f"GridAccelerator.{method}: the tensors are this worker's blocks, and not samples of its own.",
                fix="gridwise.nn.functional.all_gather(y, P_y, range(P_y.dim)) makes a block whole on all workers, "
                "gridwise.gather(y, P_y) on the first; a distributed function computes metrics of the whole.",
            )
        compare(value, self.P_x, f"GridAccelerator.{method}")
        return value

    def wait_for_everyone(self) -> None:
        world().barrier()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        if not self.is_main_process:
            world().barrier()
        yield
        if self.is_main_process:
            world().barrier()

    local_main_process_first = main_process_first

    def save_state(self, *args: Any, **kwargs: Any) -> Any:
        """Accelerate's own files: models and optimisers by the first worker, random states by each."""
        found = super().save_state(*args, **kwargs)
        world().barrier()
        return found


class OnlyRecorded:
    """The forward of a prepared model: called on a block, outside of a distributed function, it is refused."""

    def __init__(self, forward: Callable[..., Any], name: str) -> None:
        self.forward, self.name = forward, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not any(map(is_fake, flatten((args, kwargs))[0])):
            raise UnsupportedError(
                f"{self.name} was called with a block, as if it were the whole batch.",
                fix="loss_of = gridwise.distribute(lambda x, y: F.mse_loss(model(x), y), accelerator.P_x), and loss_of(x, y) "
                "in the loop.",
            )
        return self.forward(*args, **kwargs)


class CutBatches:
    """The batches of a loader, compared between the workers, and cut; in everything else the loader."""

    def __init__(self, loader: Any, P_x: CartesianPartition, device: torch.device) -> None:
        self.loader, self.P_x, self.device = loader, P_x, device

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            batches.check_same(batch, self.P_x)
            yield batches.cut(batch, self.P_x, self.device)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["loader"], name)


def put_on_grid(accelerator: Any, grid: PartitionLike) -> None:
    """Make a `GridAccelerator` of an Accelerator that takes its process for the only one."""
    P_x = as_partition(grid, "GridAccelerator", "grid")
    if not isinstance(P_x, CartesianPartition) or P_x.size != world().size:
        raise PartitionError(f"GridAccelerator: `grid` (={P_x}) has to be a grid of all {world().size} workers.")
    if accelerator.distributed_type != state.DistributedType.NO:
        raise UnsupportedError(
            f"Accelerate has started as {accelerator.distributed_type}, and would wrap models and share out samples.",
            fix="make the GridAccelerator itself, before anything else of Accelerate.",
        )
    accelerator.__class__ = GridAccelerator
    accelerator.P_x = P_x
    scaler = accelerator.scaler
    if isinstance(scaler, torch.amp.GradScaler):
        accelerator.scaler = deciding_together(scaler, accelerator.device.type, P_x)
