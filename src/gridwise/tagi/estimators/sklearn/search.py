"""Search for the number of epochs and the noise on held-out rows; a new network then learns from all rows with both.

    folds       rows are held out in turn; each fold has a network of its own, and all of them learn side by side
    each epoch  networks learn with the current noise; the likeliest noise of all held-out rows becomes the next
    the end     `patience` epochs without a better likelihood of the held-out rows; the best epoch counts
    networks    several may be tried; the one with the best likelihood of the same held-out rows counts
    then        a new network learns from all rows, with the same noise in each epoch

There are as many folds as it takes for `MIN_HELD_OUT_ROWS` held-out rows: nearly all for a small data set, one for a large one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....errors import GridwiseError
from ...nn import Sequential, TrainStep
from .tasks import LearningTask

MIN_HELD_OUT_ROWS = 250
"""Held-out rows that determine the noise to about five per cent (one over the root of twice their number)."""

MIN_IMPROVEMENT = 1e-4
"""The least increase of the log-likelihood that counts as better."""


class Settings(NamedTuple):
    """Settings of the search: see `TAGIRegressor`."""

    batch_size: int
    max_epochs: int
    early_stopping: bool
    patience: int
    validation_fraction: float
    verbose: int


class Found(NamedTuple):
    """The noise of every epoch up to the best one, and then: the noise, the likelihood of held-out rows, their residuals.

    `converged` is False if the likelihood was still increasing after the last epoch that was allowed.
    """

    schedule: list[Any]
    noise: Any
    likelihood: float
    residuals: Tensor | None = None
    converged: bool = True


def search(
    task: LearningTask, rows: int, settings: Settings, generator: torch.Generator, say: Callable[[str], None]
) -> Found:
    """The noise schedule that is best on held-out rows."""
    fold = fold_of(rows, settings.validation_fraction, generator)
    members = int(fold.max()) + 1
    held_out, held_out_rows = fold[:, None] == torch.arange(members), (fold >= 0).nonzero()[:, 0]
    net = task.network(members)
    step, batch = TrainStep(net, task.observe), math.ceil(settings.batch_size / (1.0 - settings.validation_fraction))
    schedule: list[Any] = []
    noise, best = task.first_noise(), Found([], None, -math.inf)
    for epoch in range(1, settings.max_epochs + 1):
        schedule.append(noise)
        learn_epoch(task, step, rows, noise, batch, generator, held_out)
        mu, var = (t[torch.arange(len(held_out_rows)), fold[held_out_rows]] for t in task.outputs(net, held_out_rows))
        if not bool(torch.isfinite(mu).all() & torch.isfinite(var).all()):
            raise diverged(epoch)
        noise, likelihood = task.judge(mu, var, held_out_rows)
        if settings.verbose > 1:
            say(f"epoch {epoch}: held-out log-likelihood {likelihood:.4f}")
        if likelihood > best.likelihood + MIN_IMPROVEMENT or not settings.early_stopping:
            residuals = task.residuals(mu, var, held_out_rows, noise)
            best = Found(list(schedule), noise, likelihood, residuals, not settings.early_stopping)
        elif epoch - len(best.schedule) >= settings.patience:
            return best._replace(converged=True)
    return best


def refit(
    task: LearningTask, rows: int, schedule: list[Any], batch_size: int, generator: torch.Generator
) -> Sequential:
    """A new network, trained on all rows for one epoch with each noise of the schedule."""
    net = task.network()
    step = TrainStep(net, task.observe)
    for epoch, noise in enumerate(schedule, 1):
        learn_epoch(task, step, rows, noise, batch_size, generator)
        check_network(net, epoch)
    return net.eval()


def check_network(net: Sequential, epoch: int) -> None:
    """Raise if parameters of the network are no longer finite."""
    if not all(bool(torch.isfinite(p).all()) for p in net.parameters()):
        raise diverged(epoch)


def learn_epoch(
    task: LearningTask,
    step: TrainStep,
    rows: int,
    noise: Any,
    batch_size: int,
    generator: torch.Generator,
    held_out: Tensor | None = None,
) -> None:
    """Learn each row once, in random batches."""
    step.net.train()
    for batch in torch.randperm(rows, generator=generator).split(batch_size):
        task.learn(step, batch, noise, None if held_out is None else held_out[batch])
    step.net.eval()


def fold_of(rows: int, fraction: float, generator: torch.Generator) -> Tensor:
    """The member that each row is held out from; -1 for rows that all members learn."""
    size = min(max(1, round(fraction * rows)), rows - 1)
    count = min(math.ceil(MIN_HELD_OUT_ROWS / size), rows // size)
    fold = torch.arange(rows) // size
    return torch.where(fold < count, fold, -1)[torch.randperm(rows, generator=generator)]


def diverged(epoch: int) -> GridwiseError:
    return GridwiseError(
        f"fit: the network is NaN or infinite after epoch {epoch}, and so is every prediction.\n"
        "  fix: inputs of moderate size (a StandardScaler), fewer hidden units, or a larger noise."
    )
