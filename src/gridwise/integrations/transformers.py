"""transformers: `GridTrainer(..., grid=(1, 1, 2, 2))` in place of `Trainer`, with the model as it is.

`compute_loss` is recorded as a whole, with the model's own loss or the user's, and runs on blocks; everything else of the
Trainer goes on as on one process, on every worker alike.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..comm.launching.local_device import device as own_device
from ..errors import PartitionError, UnsupportedError
from ..models.model import DistributedFunction, DistributedModel
from ..models.recorder import Options
from ..nn.parameters.replicas import synchronise_replicas
from ..partition import CartesianPartition, PartitionLike, as_partition, world
from .libraries import library
from .trainers import batches
from .trainers.steps import whole_outputs

Trainer: Any = library("transformers").Trainer
TrainingArguments: Any = library("transformers").TrainingArguments
DistributedType: Any = library("accelerate.utils").DistributedType

from .accelerate import one_process_each  # noqa: E402 - transformers is what is missing, if both are


@dataclass
class GridTrainingArguments(TrainingArguments):
    """TrainingArguments of workers that share each batch: to transformers, each of them is a process on its own.

    Only the first worker prints and saves.

    Parameters
    ----------
    output_dir, ... : as of transformers' TrainingArguments

    Examples
    --------
    >>> from gridwise.integrations.transformers import GridTrainingArguments
    >>> GridTrainingArguments("out", use_cpu=True, report_to="none").world_size
    1
    """

    def __post_init__(self) -> None:
        one_process_each(bool(self.use_cpu))
        config: Any = vars(self).get("accelerator_config")
        if isinstance(config, str | os.PathLike):
            config = json.loads(Path(config).read_text(encoding="utf-8"))
        if isinstance(config, dict | None):
            config = {**(config or {}), "use_configured_state": True}
        else:
            config.use_configured_state = True
        self.accelerator_config = config
        super().__post_init__()

    @functools.cached_property
    def _setup_devices(self) -> torch.device:
        found = super()._setup_devices
        self._n_gpu = min(vars(self)["_n_gpu"], 1)
        return own_device() if found.type == "cuda" else found


class GridTrainer(Trainer):
    """The Trainer of transformers, of which every batch is cut over a grid of workers.

    Parameters
    ----------
    *args, **options : those of transformers' Trainer
    grid : the shape of the grid of all workers, or a partition of them, with an axis for each dim of the largest inputs:
        (1, 1, 2, 2) cuts the rows and columns of ``pixel_values``, (2, 2) samples and tokens of ``input_ids``

    Attributes
    ----------
    P_x : the partition of the inputs

    Examples
    --------
    >>> from gridwise.integrations.transformers import GridTrainer, GridTrainingArguments
    >>> from transformers import ViTConfig, ViTForImageClassification
    >>> config = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=32)
    >>> arguments = GridTrainingArguments("out", max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True)
    >>> data = [{"pixel_values": torch.rand(3, 32, 32), "labels": 1}] * 2
    >>> trainer = GridTrainer(ViTForImageClassification(config), arguments, train_dataset=data, grid=(1, 1, 1, 1))
    >>> _ = trainer.train()  # doctest: +ELLIPSIS
    {...
    """

    def __init__(self, *args: Any, grid: PartitionLike, **options: Any) -> None:
        P_x = as_partition(grid, "GridTrainer", "grid")
        if not isinstance(P_x, CartesianPartition) or P_x.size != world().size:
            raise PartitionError(f"GridTrainer: `grid` (={P_x}) has to be a grid of all {world().size} workers.")
        self.P_x = P_x
        super().__init__(*args, **options)
        self._refuse_several_processes()
        if self.args.torch_compile:
            raise UnsupportedError("GridTrainer: `torch_compile` (=True).", fix="leave it out: the model is recorded.")
        if any(isinstance(part, DistributedModel) for part in self.model.modules()):
            raise UnsupportedError(
                f"GridTrainer: {type(self.model).__name__} is distributed already.", fix="give the model as it is."
            )
        synchronise_replicas(self.model, P_x)
        self._functions: dict[Any, DistributedFunction] = {}
        self._loss_alone: Callable[..., Any] = super().__getattribute__("compute_loss")  # of a user's class, perhaps
        self.compute_loss = self._loss_on_grid

    def _refuse_several_processes(self) -> None:
        found, devices = self.args.distributed_state.distributed_type, self.args.n_gpu
        if found != DistributedType.NO or devices > 1:
            what = f"as {found}" if found != DistributedType.NO else f"with {devices} devices for each worker"
            raise UnsupportedError(
                f"GridTrainer: TrainingArguments has started {what}, and would wrap the model and share out samples.",
                fix="gridwise.integrations.transformers.GridTrainingArguments in place of TrainingArguments.",
            )

    def _loss_on_grid(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """In the place of `compute_loss`: the same numbers, from blocks."""

        def compute(inputs: dict[str, Any], number: Any) -> Any:
            return self._loss_alone(model, dict(inputs), return_outputs=True, num_items_in_batch=number)

        (loss, outputs), P_y = self._run("compute_loss", compute, model, inputs, num_items_in_batch)
        return (loss, whole_outputs(outputs, P_y[1])) if return_outputs else loss

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        def forward(**inputs: Any) -> Any:
            if not torch.is_inference_mode_enabled() and torch.is_grad_enabled():
                return model(**inputs)
            outputs, P_y = self._run("forward", lambda inputs, _: model(**inputs), model, inputs, None)
            return whole_outputs(outputs, P_y)

        has_labels = bool(self.label_names) and all(inputs.get(name) is not None for name in self.label_names)
        with_loss = has_labels or (not self.label_names and inputs.get("return_loss", self.can_return_loss))
        return super().prediction_step(model if with_loss else forward, inputs, *args, **kwargs)

    def _run(self, name: str, function: Callable[..., Any], model: Any, inputs: Any, number: Any) -> tuple[Any, Any]:
        """What the function returns for this worker's part of the inputs, and where that lies."""
        batches.check_same(inputs, self.P_x)
        mine = batches.cut(dict(inputs), self.P_x, self.args.device)
        if (name, model) not in self._functions:
            parts = {
                key: part for key, part in vars(self).items() if isinstance(part, torch.nn.Module)
            }  # a teacher, say
            others = {key: part for key, part in parts.items() if part is not model}
            says = f"{name} of {type(model).__name__} on {self.P_x.shape}"
            place = batches.StepInputs(says, function, self.P_x, {})
            self._functions[name, model] = DistributedFunction(says, function, {"": model} | others, place, Options())
        run = self._functions[name, model]
        return run(mine, number), run.P_y

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._save_checkpoint(*args, **kwargs)
        world().barrier()
        return found
