"""A step of a LightningModule as one function on the grid: recorded as a whole, its loss included.

The step is the user's code as it is written for one process. It sees whole tensors, while it is recorded; what it logs,
and what it gives to metrics, are outputs of the recording, and are logged after each run.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...errors import UnsupportedError
from ...models.model import DistributedFunction
from ...models.recorder import Options
from ...models.recording.containers import flatten, unflatten
from ...nn.functional import all_gather
from ...partition import CartesianPartition, Partition
from .batches import Placeholders, StepInputs
from .metrics import Event, Metrics
from .trainer_seen import CHANGES_ALWAYS, NumberSeen, TrainerSeen


class RecordedStep:
    """`training_step`, `validation_step`, `test_step` or `predict_step` of a module, on blocks of the batch."""

    def __init__(self, module: torch.nn.Module, name: str, P_x: CartesianPartition, metrics: Metrics) -> None:
        self.module, self.name, self.metrics = module, name, metrics
        self.says = f"{name} of {type(module).__name__}"
        self.places = Placeholders()
        self._number: int | None = None
        self._seen: dict[str, Any] = {}
        """What recordings have read of the Trainer, and `batch_idx` if they have used it."""
        self._has_warned = False
        inputs = StepInputs(self.says, self._call, P_x, {})
        says = f"{self.says} on {P_x.shape}"
        self.run = DistributedFunction(says, self._call, {"": module}, inputs, Options())

    def __call__(self, batch: Any, *rest: Any, whole: bool = True) -> Any:
        """What the step returns for this worker's part of a batch, with whole tensors, or blocks; logs what it logs."""
        batch, values = self.places.put(batch)
        self._number, others = (rest[0], rest[1:]) if rest else (None, ())
        trainer = self.module._trainer
        with self._alone(trainer):
            seen = tuple((name, self._now(name, trainer)) for name in sorted(self._seen))
            result, events = self.run(batch, others, seen)
        P_result, P_events = self.run.P_y
        self.metrics.do(self.module, self._done(whole_outputs(events, P_events, detach=True)))
        self._warn()
        result = whole_outputs(result, P_result) if whole else result
        return self.places.back(result, values)

    def _call(self, batch: Any, others: tuple[Any, ...], seen: object) -> tuple[Any, list[Event]]:
        """The user's step, as it is recorded."""
        self.metrics.events = []
        number = () if self._number is None else (NumberSeen("batch_idx", self._number, self._note),)
        result = getattr(self.module, self.name)(batch, *number, *others)
        events, self.metrics.events = self.metrics.events, []
        return result, events

    def _note(self, name: str, value: Any) -> None:
        self._seen[name] = value

    def _now(self, name: str, trainer: Any) -> Any:
        return self._number if name == "batch_idx" else getattr(trainer, name.partition(".")[2])

    def _warn(self) -> None:
        found = CHANGES_ALWAYS & self._seen.keys()
        if found and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self.says} reads {', '.join(sorted(found))}, and is recorded anew for each of its values, which takes "
                "seconds. What depends on it is better in a hook, or a buffer of the module.",
                stacklevel=2,
            )

    @staticmethod
    def _done(events: Any) -> list[Event]:
        return [tuple(event) for event in events]

    @contextmanager
    def _alone(self, trainer: Any) -> Iterator[None]:
        """Hide the Trainer from the module: it would belong to the state on which a recording depends."""
        own = {"_trainer": self._trainer_seen(trainer), "_metric_attributes": None}
        logs = {"log": self.metrics.log, "log_dict": self.metrics.log_dict}
        parts = [part for part in self.module.modules() if "_trainer" in vars(part)]  # parts may be such modules too
        before = [{key: vars(part).get(key, _MISSING) for key in (*own, *logs)} for part in parts]
        try:
            for part in parts:
                part.__dict__.update(own | logs)
            with self.metrics.replaced():
                yield
        finally:
            for part, held in zip(parts, before, strict=True):
                for key, value in held.items():
                    if value is _MISSING:
                        part.__dict__.pop(key, None)
                    else:
                        part.__dict__[key] = value

    def _trainer_seen(self, trainer: Any) -> TrainerSeen:
        found = self.__dict__.get("_kept")
        if found is None or found.__dict__["_trainer"] is not trainer:
            found = self._kept = TrainerSeen(trainer, self._note, self.says)
        return found


_MISSING = object()


def whole_outputs(values: Any, P_y: Any, detach: bool = False) -> Any:
    """Outputs of a distributed function with their whole tensors, on every worker; `P_y` says where they lie."""
    leaves, tree = flatten(values, once=False)
    partitions, _ = flatten(P_y, lambda value: isinstance(value, Partition), once=False)
    places, known, found = iter(partitions), dict[int, Tensor](), list[Tensor]()
    for y in leaves:
        P = next(places) if y.dim() else None  # scalars have none: every worker holds them
        if id(y) not in known:
            value = y.detach() if detach else y
            known[id(y)] = value if P is None else all_gather(value, P, range(P.dim))
        found.append(known[id(y)])
    return unflatten(tree, found)


def refuse_unsupported(module: Any) -> None:
    """Refuse what a recorded step cannot be."""
    name = type(module).__name__
    if not module.automatic_optimization:
        raise UnsupportedError(
            f"GridStrategy: {name} has `automatic_optimization=False`: its training_step makes steps of optimisers itself, and "
            "cannot be recorded.",
            fix="in configure_model, self.loss_of = gridwise.distribute(loss_of, self.trainer.strategy.P_x): the steps of a "
            "module with distributed parts run as they are written, on blocks.",
        )
    if getattr(module, "_compiler_ctx", None) is not None:
        raise UnsupportedError(
            f"GridStrategy: {name} is compiled.", fix="give the module itself to the Trainer; its steps are recorded."
        )
