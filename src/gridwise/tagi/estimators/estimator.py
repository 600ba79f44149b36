"""Base of the estimators: checks before anything is learnt, and epochs with a progress bar.

model = Regressor(net, sigma_v=0.2).fit(x, y, epochs=20)
p = model.predict(x_new)
p.mean, p.std, p.interval(0.95)

Where several workers train a network together (the `.model` of a `DDPSequential`), each fits its own rows: they agree
on the scales and on the number of batches, and those with fewer add empty ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import ArgumentError, GridwiseError
from ...progress import ProgressBar
from ..inference.finite_values import check_inputs
from ..nn import Sequential, TrainStep
from ..nn.data_struct import describe
from .batches import Batch, Batches, Shape, as_columns
from .fitted_network import FittedNetwork, Noise


class Survey(NamedTuple):
    """Sizes of a worker's data: `shape` of a row of x, `columns` of y (None: no batches), rows, batches per epoch."""

    shape: Shape | None
    columns: int | None
    rows: int
    batches: int


class Data(NamedTuple):
    """Training data: batches, the noise of each epoch, shapes, how many batches are this worker's `own`, and `empty`."""

    batches: Batches
    sigmas: list[float]
    shape: Shape
    columns: int
    own: int
    empty: int


class Estimator(FittedNetwork):
    """Base of `Regressor`, `Classifier` and `Forecaster`: training in epochs of shuffled batches.

    Parameters
    ----------
    net
        A `Sequential`, on the device it is to run on.
    sigma_v
        Standard deviation of the noise on the observations: a number, or a function of the epoch (0, 1, ...).
    compile
        Whether to compile the training step; see `TrainStep`.
    """

    observe = "all"

    def __init__(self, net: Sequential, sigma_v: Noise, compile: bool = False) -> None:
        super().__init__(net, sigma_v)
        self._step = TrainStep(net, self.observe, compile)

    # ---- for subclasses to override ---------------------------------------------------------------------------------
    def _learn(self, x: Tensor, y: Tensor, sigma: float) -> float:
        """Make one training step; returns a measure of its error, for the progress bar."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Called before the training data are checked."""

    def _inspect(self, what: str, x: Tensor, y: Tensor) -> None:
        """Called with each block of the training data before anything is learnt; raises if `y` cannot be learnt."""

    def _check_outputs(self, units: int, columns: int) -> None:
        """Raise unless a network with `units` outputs can learn from `columns` columns of y."""

    def _ready(self, shape: Shape, columns: int) -> None:
        """Called after all data have been checked, on all workers, before the first epoch of a fit."""

    # ---- training ---------------------------------------------------------------------------------------------------
    def fit(
        self,
        x: object,
        y: object = None,
        *,
        epochs: int = 1,
        batch_size: int = 16,
        shuffle: bool = True,
        progress: bool = True,
        seed: int = 0,
    ) -> Any:
        """Learn from arrays `x`, `y`, or from a DataLoader of pairs given as `x`; returns the estimator.

        All data are checked once before the first epoch; if some cannot be learnt, fit raises and nothing is changed.
        Rows are independent of one another: recurrent layers start each from zero, whatever their `stateful`. A second
        fit starts over, from the network as it was before the first, with scales from its own data.
        """
        before = self._shape, self._units, self.history
        self._shape, self.history = None, []
        try:
            data = self._look_through(x, y, epochs, batch_size, shuffle, seed)
        except BaseException:
            self._shape, self._units, self.history = before
            raise
        if self._start is None:
            self._start = self._network_now()
        else:
            self.net.load_state_dict(self._start)
        self._ready(data.shape, data.columns)
        self._units = self._outputs_of(data.shape)
        self._shape = data.shape
        return self._learn_all(data, progress)

    def partial_fit(
        self,
        x: object,
        y: object = None,
        *,
        epochs: int = 1,
        batch_size: int = 16,
        shuffle: bool = True,
        progress: bool = True,
        seed: int = 0,
    ) -> Any:
        """Continue learning, with the scales of the first fit; the same as `fit` if nothing has been fitted."""
        if self._shape is None:
            return self.fit(x, y, epochs=epochs, batch_size=batch_size, shuffle=shuffle, progress=progress, seed=seed)
        return self._learn_all(self._look_through(x, y, epochs, batch_size, shuffle, seed), progress)

    def _look_through(self, x: object, y: object, epochs: int, batch_size: int, shuffle: bool, seed: int) -> Data:
        """The data of a fit, once all workers have checked theirs; all raise if one finds a problem."""
        problem: Exception | None = None
        data, mine, sigmas = None, Survey(None, None, 0, 0), []
        try:
            if epochs < 0:
                raise ArgumentError(f"fit: `epochs` (={epochs}) is less than zero.")
            sigmas = [self._sigma(len(self.history) + epoch) for epoch in range(epochs)]
            data = Batches(x, y, batch_size, shuffle, seed, self._device())
            mine = self._survey(data)
        except Exception as error:  # a loader may raise anything
            problem = error
        self._agree("fit", problem)
        assert data is not None
        shape, columns, batches = self._common(mine, epochs)
        return Data(data, sigmas, shape, columns, mine.batches, batches - mine.batches)

    def _learn_all(self, data: Data, progress: bool) -> Any:
        with closing(ProgressBar("epoch", len(data.sigmas), None if progress else False)) as bar:
            for epoch, sigma in enumerate(data.sigmas):
                self.net.train()
                errors = []
                for xs, ys in data.batches.epoch() if self.net.replicas is None else self._shared_epoch(data):
                    self.net.reset_lstm_states()
                    errors.append(self._learn(xs.reshape(len(xs), *data.shape), ys, sigma))
                self.net.reset_lstm_states()
                self._check_parameters()
                self.history.append({"sigma_v": sigma, "error": self._mean_error(errors)})
                bar.report(epoch + 1, f"error {self.history[-1]['error']:.4g}")
        return self

    def _shared_epoch(self, data: Data) -> Iterator[Batch]:
        """The batches of an epoch, and the empty ones; all workers raise if one has fewer or more than before."""
        batches = data.batches.epoch()
        for number in range(data.own):
            batch, problem = _next(batches)
            if batch is None:
                gave = f"the loader gave {number} batches, {data.own} before the first epoch"
                self._agree("forward", problem or ArgumentError(gave))  # the others are about to make a step
            else:
                yield batch
        for _ in range(data.empty):
            nothing = torch.zeros(0, *data.shape, device=self._device())
            yield nothing, torch.zeros(0, data.columns, device=self._device())
        batch, problem = _next(batches)
        if batch is not None:
            problem = ArgumentError(f"the loader gave more than {data.own} batches, {data.own} before the first epoch")
        self._agree("epoch", problem)

    def _check_parameters(self) -> None:
        """Raise if parameters are no longer finite; on all workers alike, since their parameters are the same."""
        for layer in self.net.parametric_layers():
            if not all(bool(torch.isfinite(p).all()) for p in layer.parameters()):
                raise GridwiseError(
                    f"{type(self).__name__}.fit: the parameters of {layer.get_layer_info()} are NaN or infinite after epoch "
                    f"{len(self.history)}, and so is every prediction.\n"
                    "  fix: a fresh network; inputs of moderate size (x - x.mean(0)) / x.std(0), a larger sigma_v, or float64."
                )

    def _survey(self, data: Batches) -> Survey:
        """The sizes of this worker's data; raises for data that cannot be learnt."""
        self._begin()
        shape, columns, rows, blocks = self._shape, None, 0, 0
        for what, x, y in data.blocks():
            if blocks == 0:
                shape = self._check_features(x, what)
                columns = math.prod(y.shape[1:])
                self._check_outputs(self._outputs_of(shape), columns)
            elif math.prod(x.shape[1:]) != math.prod(shape or ()) or math.prod(y.shape[1:]) != columns:
                raise ArgumentError(
                    f"{what}: rows of `x` and `y` have shapes {tuple(x.shape[1:])} and {tuple(y.shape[1:])}, those of the "
                    f"batches before {math.prod(shape or ())} and {columns} values."
                )
            check_inputs(x, what, "x")
            self._inspect(what, x.reshape(len(x), *(shape or ())), as_columns(y))
            rows, blocks = rows + len(x), blocks + 1
        return Survey(shape if blocks else None, columns, rows, data.count(blocks))

    def _mean_error(self, errors: list[float]) -> float:
        known = [error for error in errors if not math.isnan(error)]
        total = torch.tensor([sum(known), len(known)], dtype=torch.float64, device="cpu")
        if (team := self.net.replicas) is not None:
            total = team.transport.all_sum(total, team.team, "the error of an epoch")
        return float(total[0] / total[1])

    # ---- several workers --------------------------------------------------------------------------------------------
    def _agree(self, verb: str, problem: Exception | None) -> None:
        """Raise on all workers if one of them has a problem."""
        if self.net.replicas is not None:
            self.net.replicas.agree(verb, None if problem is None else describe(problem))
        elif problem is not None:
            raise problem

    def _common(self, mine: Survey, epochs: int) -> tuple[Shape, int, int]:
        """Shape of a row, columns of y and batches per epoch for all workers; all raise if theirs do not match."""
        team, here = self.net.replicas, json.dumps([*mine, epochs, len(self.history)]).encode()
        parts = [here] if team is None else team.transport.gather_bytes(here, team.team, "the sizes of training data")
        reports = [tuple(json.loads(part)) for part in parts]
        shapes = {(tuple(t[0]), t[1]) for t in reports if t[0] is not None}
        if len(shapes) > 1 or len({t[4:] for t in reports}) > 1:
            ranks = team.team if team is not None else (0,)
            lines = [
                f"worker {rank}: rows of x {t[0]}, columns of y {t[1]}, `epochs` (={t[4]}), {t[5]} epochs before"
                for rank, t in zip(ranks, reports, strict=True)
            ]
            raise ArgumentError(
                "fit: the workers' data or epochs differ.", lines, "the same columns and epochs on all workers."
            )
        if not shapes or not sum(t[2] for t in reports):
            raise ArgumentError("fit: there are no rows to learn from: `x` has 0 rows, or the loader gave no batch.")
        shape, columns = shapes.pop()
        return shape, columns or 0, max(t[3] for t in reports)


def _next(batches: Iterator[Batch]) -> tuple[Batch | None, Exception | None]:
    """The next batch, None after the last; or the error that a loader has raised instead."""
    try:
        return next(batches, None), None
    except Exception as error:  # a loader may raise anything
        return None, error
