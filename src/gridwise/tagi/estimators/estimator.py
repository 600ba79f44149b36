"""What the estimators share: checks before anything is learnt, epochs with a progress bar, predictions, their state.

model = Regressor(net, sigma_v=0.2).fit(x, y, epochs=20)
p = model.predict(x_new)
p.mean, p.std, p.interval(0.95)

A network that several workers train together (the `.model` of a `DDPSequential`) has each worker fit its own rows: they
agree on the scales and on the number of batches, and those with fewer make empty ones.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import GridwiseError, PartitionError, describe
from ...progress import ProgressBar
from ..inference.finite_values import check_inputs
from ..metric import half_width
from ..nn import LSTM, Conv2d, Linear, Sequential, TrainStep
from ..nn.gaussian import Gaussian
from .batches import Batches, Shape, as_columns, as_rows

Noise = float | Callable[[int], float]


@dataclass(frozen=True)
class Prediction:
    """A Gaussian for every observation.

    Attributes
    ----------
    mean, std
        Of the observation that is to come, its noise included.
    model_std
        The part that more data would take away.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> x = np.linspace(-1, 1, 40, dtype='float32')[:, None]
    >>> net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> model = gridwise.tagi.Regressor(net, sigma_v=0.3).fit(x, x**2, epochs=2, progress=False)
    >>> low, high = model.predict(x).interval(0.95)
    >>> bool((low < high).all())
    True
    """

    mean: np.ndarray
    std: np.ndarray
    model_std: np.ndarray

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The central interval that holds an observation with probability `level`."""
        reach = half_width(level) * self.std
        return self.mean - reach, self.mean + reach


class Survey(NamedTuple):
    """What a worker's data are: `shape` of a row of x and `columns` of y (None: no batches), rows, batches an epoch."""

    shape: Shape | None
    columns: int | None
    rows: int
    batches: int


class Data(NamedTuple):
    """What is learnt from: batches, the noise of each epoch, shapes, and how many `empty` batches an epoch needs."""

    batches: Batches
    sigmas: list[float]
    shape: Shape
    columns: int
    empty: int


class Estimator:
    """Base of `Regressor`, `Classifier` and `Forecaster`: training in epochs of shuffled batches.

    Parameters
    ----------
    net
        A `Sequential`, on the device where it is to run.
    sigma_v
        Standard deviation of the observations' noise: a number, or a function of the epoch (0, 1, ...).
    compile
        Compile each training step (CPU) or capture it in a CUDA graph; see `TrainStep`.
    """

    observe = "all"

    def __init__(self, net: Sequential, sigma_v: Noise, compile: bool = False) -> None:
        self.net, self.sigma_v = net, sigma_v
        self.history: list[dict[str, float]] = []
        self._step = TrainStep(net, self.observe, compile)
        self._shape: Shape | None = None  # of a row of x; None before the first fit
        self._units = 0  # outputs of the network for a row
        self._start: dict[str, Tensor] | None = None  # the network before the first fit
        if not callable(sigma_v):
            self._sigma(0)

    # ---- to be given by a subclass ----------------------------------------------------------------------------------
    def _learn(self, x: Tensor, y: Tensor, sigma: float) -> float:
        """One training step; a measure of its error, for the progress bar."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Called before the training data are looked through."""

    def _inspect(self, what: str, x: Tensor, y: Tensor) -> None:
        """Called with each block of the training data before anything is learnt; raises if `y` cannot be learnt."""

    def _check_outputs(self, units: int, columns: int) -> None:
        """Raise unless a network with `units` outputs can learn from `columns` columns of y."""

    def _ready(self, shape: Shape, columns: int) -> None:
        """Called when all data have been looked through, on all workers, before the first epoch of a fit."""

    # ---- training ---------------------------------------------------------------------------------------------------
    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int = 16,
        shuffle: bool = True,
        progress: bool = True,
        seed: int = 0,
    ) -> Any:
        """Learn from arrays `x`, `y`, or from a DataLoader of pairs given as `x`; returns the estimator.

        The data are looked through once before the first epoch: what cannot be learnt is refused, and nothing changes.
        Rows are independent of one another: recurrent layers start each of them from zero, whatever their `stateful`.
        A second fit starts anew, from the network as it was before the first, with scales of its own data.
        """
        before = self._shape, self._units, self.history
        self._shape, self.history = None, []
        try:
            data = self._look_through(x, y, epochs, batch_size, shuffle, seed)
        except PartitionError:
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
        x: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int = 16,
        shuffle: bool = True,
        progress: bool = True,
        seed: int = 0,
    ) -> Any:
        """Learn on from what is known, with the scales of the first data; like `fit` where nothing has been fitted."""
        if self._shape is None:
            return self.fit(x, y, epochs=epochs, batch_size=batch_size, shuffle=shuffle, progress=progress, seed=seed)
        return self._learn_all(self._look_through(x, y, epochs, batch_size, shuffle, seed), progress)

    def _network_now(self) -> dict[str, Tensor]:
        return {name: value.detach().cpu().clone() for name, value in self.net.state_dict().items()}

    def _look_through(self, x: Any, y: Any, epochs: int, batch_size: int, shuffle: bool, seed: int) -> Data:
        """The data of a fit, after all workers have found that they can be learnt from; else all raise."""
        problem, data, mine, sigmas = None, None, Survey(None, None, 0, 0), []
        try:
            if epochs < 0:
                raise PartitionError(f"fit: `epochs` (={epochs}) is less than zero.")
            sigmas = [self._sigma(len(self.history) + epoch) for epoch in range(epochs)]
            data = Batches(x, y, batch_size, shuffle, seed, self._device())
            mine = self._survey(data)
        except PartitionError as error:
            problem = str(error)
        self._agree("fit", problem)
        assert data is not None
        shape, columns, batches = self._common(mine, epochs)
        return Data(data, sigmas, shape, columns, batches - mine.batches)

    def _learn_all(self, data: Data, progress: bool) -> Any:
        with closing(ProgressBar("epoch", len(data.sigmas), None if progress else False)) as bar:
            for epoch, sigma in enumerate(data.sigmas):
                self.net.train()
                errors = []
                for xs, ys in data.batches.epoch():
                    self.net.reset_lstm_states()
                    errors.append(self._learn(xs.reshape(len(xs), *data.shape), ys, sigma))
                for _ in range(data.empty):
                    nothing = torch.zeros(0, *data.shape, device=self._device())
                    self._learn(nothing, torch.zeros(0, data.columns, device=self._device()), sigma)
                self.net.reset_lstm_states()
                self._check_parameters()
                self.history.append({"sigma_v": sigma, "error": self._mean_error(errors)})
                bar.report(epoch + 1, f"error {self.history[-1]['error']:.4g}")
        return self

    def _check_parameters(self) -> None:
        """Raise if an epoch has ruined the network: the same on all workers, which have the same parameters."""
        for layer in self.net.parametric_layers():
            if not all(bool(torch.isfinite(p).all()) for p in layer.parameters()):
                raise GridwiseError(
                    f"{type(self).__name__}.fit: the parameters of {layer.get_layer_info()} are NaN or infinite after epoch "
                    f"{len(self.history)}, and so is every prediction.\n"
                    "  fix: a fresh network; inputs of moderate size (x - x.mean(0)) / x.std(0), a larger sigma_v, or float64."
                )

    def _sigma(self, epoch: int) -> float:
        sigma = float(self.sigma_v(epoch) if callable(self.sigma_v) else self.sigma_v)
        if not (math.isfinite(sigma) and sigma >= 0):
            at = f" in epoch {epoch}" if callable(self.sigma_v) else ""
            raise PartitionError(
                f"{type(self).__name__}: `sigma_v` (={sigma}){at} is a standard deviation: zero or more, and finite."
            )
        return sigma

    def _survey(self, data: Batches) -> Survey:
        """Look through this worker's data; raises for what cannot be learnt."""
        self._begin()
        shape, columns, rows, blocks = self._shape, None, 0, 0
        for what, x, y in data.blocks():
            if blocks == 0:
                shape = self._check_features(x, what)
                columns = math.prod(y.shape[1:])
                self._check_outputs(self._outputs_of(shape), columns)
            elif math.prod(x.shape[1:]) != math.prod(shape or ()) or math.prod(y.shape[1:]) != columns:
                raise PartitionError(
                    f"{what}: rows of `x` and `y` have shapes {tuple(x.shape[1:])} and {tuple(y.shape[1:])}, those of the "
                    f"batches before {math.prod(shape or ())} and {columns} values."
                )
            check_inputs(x, what, "x")
            self._inspect(what, x.reshape(len(x), *(shape or ())), as_columns(y))
            rows, blocks = rows + len(x), blocks + 1
        return Survey(shape if blocks else None, columns, rows, data.count(blocks))

    def _check_features(self, x: Tensor, what: str) -> Shape:
        """The shape of a row for the network, the same as in the first fit; raises for another number of features."""
        shape = tuple(x.shape[1:])
        given, needed = math.prod(shape), _features_of(self.net, shape)
        if self._shape is not None:
            shape, needed = self._shape, math.prod(self._shape)
        if needed is not None and given != needed:
            first = next(iter(self.net.leaves())).get_layer_info()
            raise PartitionError(
                f"{what}: `x` has {given} features in a row, the network needs {needed} ({first}).\n"
                f"  fix: `x` of shape (rows, {needed})."
            )
        return shape

    def _outputs_of(self, shape: Shape) -> int:
        """Outputs of the network for one row of `shape`: one sample is tried."""
        if self._shape is not None:
            return self._units
        trial = self._for_evaluation()
        given: Gaussian = trial._input(torch.zeros(1, *shape), None)
        if given.mu.shape[0] != 1:
            raise PartitionError(
                f"{type(self).__name__}: the network takes a row of shape {shape} of `x` for {given.mu.shape[0]} samples."
            )
        try:
            with torch.no_grad():
                return trial.infer(given).mu.numel()
        except (GridwiseError, RuntimeError, ValueError, IndexError) as error:
            raise PartitionError(
                f"{type(self).__name__}: the network cannot take a row of shape {shape} of `x`: {error}"
            ) from error

    def _mean_error(self, errors: list[float]) -> float:
        known = [error for error in errors if not math.isnan(error)]
        total = torch.tensor([sum(known), len(known)], dtype=torch.float64, device="cpu")
        if (team := self.net.replicas) is not None:
            total = team.transport.all_sum(total, team.team, "the error of an epoch")
        return float(total[0] / total[1])

    # ---- several workers --------------------------------------------------------------------------------------------
    def _agree(self, verb: str, problem: str | None) -> None:
        """Raise on all workers of the network if one of them has a problem."""
        if self.net.replicas is not None:
            self.net.replicas.agree(verb, problem)
        elif problem is not None:
            raise PartitionError(problem)

    def _common(self, mine: Survey, epochs: int) -> tuple[Shape, int, int]:
        """Shape of a row, columns of y and batches an epoch on all workers; all raise if these cannot train together."""
        team, here = self.net.replicas, json.dumps([*mine, epochs, len(self.history)]).encode()
        parts = [here] if team is None else team.transport.gather_bytes(here, team.team, "the sizes of training data")
        told = [tuple(json.loads(part)) for part in parts]
        shapes = {(tuple(t[0]), t[1]) for t in told if t[0] is not None}
        if len(shapes) > 1 or len({t[4:] for t in told}) > 1:
            ranks = team.team if team is not None else (0,)
            lines = [
                f"worker {rank}: rows of x {t[0]}, columns of y {t[1]}, `epochs` (={t[4]}), {t[5]} epochs before"
                for rank, t in zip(ranks, told, strict=True)
            ]
            raise PartitionError(
                describe(
                    "fit: the workers' data or epochs differ.", lines, "the same columns and epochs on all workers."
                )
            )
        if not shapes or not sum(t[2] for t in told):
            raise PartitionError("fit: there are no rows to learn from: `x` has 0 rows, or the loader gave no batch.")
        shape, columns = shapes.pop()
        return shape, columns or 0, max(t[3] for t in told)

    # ---- predictions ------------------------------------------------------------------------------------------------
    def _device(self) -> torch.device:
        return next(self.net.parameters()).device

    def _last_sigma(self) -> float:
        return self.history[-1]["sigma_v"] if self.history else self._sigma(0)

    def _rows(self, x: Any, what: str) -> Tensor:
        """`x` as rows for the network, checked."""
        if self._shape is None:
            raise PartitionError(
                f"{type(self).__name__}.{what}: nothing has been fitted yet.\n"
                "  fix: fit(x, y) first, or load_state_dict; fit(x, y, epochs=0) for a network that is trained already."
            )
        rows = as_rows(x, "x", what)
        shape = self._check_features(rows, what)
        check_inputs(rows, what, "x")
        return rows.reshape(len(rows), *shape)

    def _for_evaluation(self) -> Sequential:
        """The network in evaluation mode: a copy that shares its tensors and belongs to no team.

        So several threads may predict at once, and a prediction leaves no trace in the network.
        """
        shared = {id(t): t for t in (*self.net.parameters(), *self.net.buffers())}
        return copy.deepcopy(self.net, shared).eval()

    @torch.no_grad()
    def _outputs(
        self, mu: Tensor, batch_size: int, var: Tensor | None = None, net: Sequential | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the network's output for all rows, each of which recurrent layers start from zero.

        `net` is what `_for_evaluation` gave, where it is asked for more than once.
        """
        if batch_size < 1:
            raise PartitionError(f"predict: `batch_size` (={batch_size}) is less than one.")
        net = self._for_evaluation() if net is None else net
        parts = [] if len(mu) else [(torch.zeros(0, self._units, device="cpu"),) * 2]
        for start in range(0, len(mu), batch_size):
            rows = slice(start, start + batch_size)
            net.reset_lstm_states()
            out = net(mu[rows].to(self._device()), None if var is None else var[rows])
            parts.append(tuple(t.flatten(1).cpu() for t in out))
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    # ---- state ------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The network's state and all that predictions and further fits need; a checkpoint takes the estimator itself."""
        return {
            "kind": self._kind(),
            "net": self.net.state_dict(),
            "shape": None if self._shape is None else list(self._shape),
            "units": self._units,
            "sigma_v": [epoch["sigma_v"] for epoch in self.history],
            "error": [epoch["error"] for epoch in self.history],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the estimator that `state_dict` was called on; one of another kind or network is refused."""
        if state.get("kind") != self._kind():
            raise PartitionError(f"load_state_dict: the state is that of {state.get('kind')}, this is {self._kind()}.")
        theirs, mine = ({k: tuple(t.shape) for k, t in d.items()} for d in (state["net"], self.net.state_dict()))
        if theirs != mine:
            name = next(k for k in sorted({*theirs, *mine}) if theirs.get(k) != mine.get(k))
            raise PartitionError(
                f"load_state_dict: {name!r} has shape {theirs.get(name)} in the state, {mine.get(name)} in this network.\n"
                "  fix: build the network with the same layers."
            )
        if self._start is None:
            self._start = self._network_now()
        self.net.load_state_dict(state["net"])
        self._shape, self._units = None if state["shape"] is None else tuple(state["shape"]), int(state["units"])
        pairs = zip(state["sigma_v"], state["error"], strict=True)
        self.history = [{"sigma_v": float(sigma), "error": float(error)} for sigma, error in pairs]

    def _kind(self) -> str:
        return type(self).__name__


def _features_of(net: Sequential, shape: Shape) -> int | None:
    """Features that the first layer takes in a row of `shape`, where it tells."""
    first = next(iter(net.leaves()))
    if isinstance(first, LSTM):
        is_sequence = len(shape) == 2 and shape[1] == first.input_size
        return None if is_sequence else first.seq_len * first.input_size
    if isinstance(first, Conv2d):
        flat = first.flat_shape()
        return math.prod(flat) if len(shape) != 3 and flat is not None else None
    return first.input_size if isinstance(first, Linear) else None
