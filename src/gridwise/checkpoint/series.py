"""A series of checkpoints of one run: a folder with one checkpoint per step, from which old ones are removed.

folder/step-0000000100/manifest.json ...
folder/step-0000000200/manifest.json ...
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, CheckpointMismatch, CheckpointNotFound
from ..log import logger
from ..partition import Partition, world
from .consensus import Consensus
from .contents import metadata as metadata_at
from .format.manifest import MANIFEST
from .reading.loading import load
from .store_path import Place, place_of
from .writing.background import Pending, async_save
from .writing.saving import save
from .writing.store_saving import remove_checkpoint_at

_STEP = re.compile(r"step-([0-9]{1,18})")

STEPS = 10**18
"""Every step is less than this."""


class Series:
    """The checkpoints of a run, by step.

    Parameters
    ----------
    folder : where they are; created by the first save
    keep_last : how many of the newest are kept; None keeps all
    keep_every : steps that are a multiple of this are kept as well
    P : the workers that save and load together, default `gridwise.world()`
    keep_best : how many of those with the best `metric` are kept as well
    metric : the name of a number in the `metadata` that `save` is given; None there: not measured at this step
    mode : 'min' if a smaller metric is better, 'max' if a larger one is

    Examples
    --------
    >>> series = checkpoint.Series(folder, keep_last=3, keep_every=1000)
    >>> series.save({"model": model, "optim": optimiser}, step=100)
    >>> start = series.load({"model": model, "optim": optimiser}, default=0)      # 100; 0 if there were none

    >>> series = checkpoint.Series("measured", keep_last=1, keep_best=1, metric="loss")
    >>> for step, loss in enumerate([0.5, 0.2, 0.4]):
    ...     series.save({"model": model}, step, metadata={"loss": loss})
    >>> series.steps(), series.best()
    ([1, 2], 1)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep_last: int | None = 3,
        keep_every: int | None = None,
        P: Partition | None = None,
        *,
        keep_best: int | None = None,
        metric: str | None = None,
        mode: str = "min",
    ) -> None:
        for name, value in (("keep_last", keep_last), ("keep_every", keep_every), ("keep_best", keep_best)):
            if value is not None and (type(value) is not int or value < 1):
                raise CheckpointMismatch(f"`{name}` (={value!r}) must be None or a whole number of at least 1.")
        if mode not in ("min", "max"):
            raise CheckpointMismatch(f"`mode` (={mode!r}) must be 'min' or 'max'.")
        if keep_best is not None and metric is None:
            raise CheckpointMismatch(
                f"`keep_best` (={keep_best}) needs a `metric`.",
                fix='metric="loss", and save(..., metadata={"loss": loss}).',
            )
        self.folder = place_of(folder)
        self.keep_best, self.metric, self.mode = keep_best, metric, mode
        self._metrics: dict[int, float | None] = {}
        self.keep_last, self.keep_every = keep_last, keep_every
        self.P = P
        self._just_saved: int | None = None

    def path(self, step: int) -> Place:
        """The path of a step's checkpoint, whether or not it exists."""
        if type(step) is not int or not 0 <= step < STEPS:
            raise CheckpointMismatch(f"`step` (={step!r}) must be a whole number of at least 0, less than 10**18.")
        return self.folder / f"step-{step:010d}"

    def steps(self) -> list[int]:
        """The steps that have a committed checkpoint, in order; the remains of interrupted saves do not count."""
        if isinstance(self.folder, Path) and not self.folder.is_dir():
            return []
        found = ((_STEP.fullmatch(item.name), item) for item in self.folder.iterdir())
        steps = [(int(match[1]), item) for match, item in found if match]
        # A folder that spells its number differently, such as `step-7`, is not ours: `path` would not lead there.
        return sorted(n for n, item in steps if item.name == self.path(n).name and (item / MANIFEST).is_file())

    def latest(self) -> int | None:
        """The newest step that has a committed checkpoint; None if there is none."""
        return max(self.steps(), default=None)

    def metadata(self, step: int) -> dict[str, Any]:
        """What `save` was given as the `metadata` of this step."""
        return metadata_at(self.path(step))

    def best(self) -> int | None:
        """The step with the best `metric`, the newest of equal ones; None if none was measured."""
        return next(iter(self._by_metric(self.steps())), None)

    def _by_metric(self, steps: list[int]) -> list[int]:
        """Those of the steps at which the metric was measured, the best first, of equal ones the newest."""
        if self.metric is None:
            raise CheckpointMismatch(f"the series {self.folder} has no `metric`.", fix='Series(..., metric="loss").')
        found = {step: self._metric_of(step) for step in steps}
        self._metrics = {
            step: value for step, value in found.items() if step != self._just_saved
        }  # it may be in flight
        sign = 1 if self.mode == "min" else -1
        measured = [(sign * value, -step) for step, value in found.items() if value is not None]
        return [-step for _, step in sorted(measured)]

    def _metric_of(self, step: int) -> float | None:
        """The metric of a step; None if it was not measured."""
        if step in self._metrics:
            return self._metrics[step]
        value = self.metadata(step).get(str(self.metric))
        return float(value) if isinstance(value, int | float) and not math.isnan(value) else None

    def save(self, state: object, step: int, *, metadata: Mapping[str, object] | None = None) -> None:
        """Save the state of a step, then remove the checkpoints that are no longer kept; this one always is."""
        self._check_metric(metadata)
        save(self.path(step), state, self.P, metadata=metadata)
        self._metrics.pop(step, None)
        self._just_saved = step
        self.prune()

    def async_save(self, state: object, step: int, *, metadata: Mapping[str, object] | None = None) -> Pending | None:
        """Like `save`, in the background. Older checkpoints are removed when a later call finds this one committed."""
        self._check_metric(metadata)
        pending = async_save(self.path(step), state, self.P, metadata=metadata)
        self._metrics.pop(step, None)
        before, self._just_saved = self._just_saved, step
        self._prune({before, step})  # this one may still fail
        return pending

    def _check_metric(self, metadata: Mapping[str, object] | None) -> None:
        if self.metric is None:
            return
        value = (metadata or {}).get(self.metric, "")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise CheckpointMismatch(
                f"`metadata` (={metadata!r:.100}) has no number {self.metric!r}, which is the `metric` of this series.",
                fix=f"metadata={{{self.metric!r}: loss.item()}}; None if it was not measured at this step.",
            )

    def load(self, into: object, step: int | None = None, *, default: int | None = None, cast: bool = False) -> int:
        """Fill `into` from the checkpoint of `step`, default the newest, and return the step. See `checkpoint.load`.

        If there is no checkpoint yet, `into` stays as it is and `default` is returned; without a `default` that is an error.
        The first worker looks, so that all of them do the same.
        """
        P = self.P if self.P is not None else world()
        if not P.active:
            return -1
        consensus = Consensus(P, "loading from", self.folder)
        consensus.settle()  # the save in flight may be the newest
        found = consensus.from_root(lambda: json.dumps(self._step_to_load(step, default)).encode())
        chosen, is_there = json.loads(found)
        if not is_there:
            return chosen
        try:
            load(self.path(chosen), into, P, cast=cast)
        except CheckpointError as error:
            others = [number for number in self.steps() if number != chosen]
            if others:
                newest = ", ".join(map(str, others[-5:]))
                error.add_note(f"  other steps of this series: {newest}; `load(into, step=...)` takes one.")
            raise
        return chosen

    def _step_to_load(self, step: int | None, default: int | None) -> tuple[int, bool]:
        """The step, and whether it is there: `default` is not."""
        steps = self.steps()
        if step is None and steps:
            return steps[-1], True
        if step in steps:
            return step, True
        if default is not None and not steps:
            return default, False
        asked = "the newest" if step is None else f"step {step}"
        there = f"there are {', '.join(map(str, steps[-10:]))}" if steps else "nothing has been saved there yet"
        raise CheckpointNotFound(f"{self.folder} has no checkpoint for {asked}: {there}.")

    def kept(self, steps: list[int]) -> set[int]:
        """The steps among these, in order, that are kept."""
        last = steps if self.keep_last is None else steps[-self.keep_last :]
        every = [step for step in steps if self.keep_every is not None and step % self.keep_every == 0]
        best = self._by_metric(steps)[: self.keep_best] if self.keep_best is not None else []
        return {*last, *every, *best}

    def prune(self) -> list[int]:
        """Remove the checkpoints that are no longer kept, on the first worker. Returns the steps removed here.

        The step saved last by this object stays, whatever its number.
        """
        return self._prune({self._just_saved})

    def _prune(self, stay: set[int | None]) -> list[int]:
        P = self.P if self.P is not None else world()
        if P.rank != 0:
            return []
        steps, removed = self.steps(), list[int]()
        try:
            kept = self.kept(steps)
        except (OSError, CheckpointError) as error:
            logger.warning("nothing was removed from %s: %s", self.folder, error)
            return removed
        for step in sorted(set(steps) - kept - stay):
            try:
                remove_checkpoint_at(self.path(step))
                removed.append(step)
            except (OSError, CheckpointError) as error:
                logger.warning("the checkpoint of step %d could not be removed: %s", step, error)
        return removed
