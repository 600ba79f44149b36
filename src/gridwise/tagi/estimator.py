"""What the estimators share: batches from arrays or from a DataLoader, epochs with a progress bar, predictions.

model = Regressor(net, sigma_v=0.2).fit(x, y, epochs=20)
p = model.predict(x_new)
p.mean, p.std, p.interval(0.95)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from ..errors import PartitionError
from .metric import half_width
from .nn import Sequential, TrainStep

Noise = float | Callable[[int], float]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Prediction:
    """A Gaussian for every observation.

    Attributes
    ----------
    mean, std
        Of the observation that is to come, its noise included.
    model_std
        The part that more data would take away.
    """

    mean: np.ndarray
    std: np.ndarray
    model_std: np.ndarray

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The central interval that holds an observation with probability `level`."""
        reach = half_width(level) * self.std
        return self.mean - reach, self.mean + reach


class Scale:
    """Mean and standard deviation of columns, to standardise with and to go back."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.mean, self.std = mean, torch.where(std > 0, std, torch.ones_like(std))

    @classmethod
    def of(cls, blocks: Iterable[Tensor]) -> Scale:
        """From blocks of rows; NaN is left out."""
        count = total = squares = torch.zeros((), dtype=torch.float64, device="cpu")
        for block in blocks:
            rows = block.double().cpu()
            known = ~torch.isnan(rows)
            filled = torch.nan_to_num(rows)
            count, total = count + known.sum(0), total + filled.sum(0)
            squares = squares + (filled * filled).sum(0)
        mean = total / count.clamp_min(1)
        return cls(mean.float(), (squares / count.clamp_min(1) - mean * mean).clamp_min(0).sqrt().float())

    @classmethod
    def none(cls) -> Scale:
        """The scale that changes nothing."""
        return cls(torch.zeros((), device="cpu"), torch.ones((), device="cpu"))

    def standardise(self, x: Tensor) -> Tensor:
        return (x - self.mean.to(x)) / self.std.to(x)


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

    # ---- to be given by a subclass ----------------------------------------------------------------------------------
    def _learn(self, x: Tensor, y: Tensor, sigma: float) -> float:
        """One training step; a measure of its error, for the progress bar."""
        raise NotImplementedError

    def _prepare(self, batches: Callable[[], Iterable[Batch]]) -> None:
        """Called once before the first epoch, with the training data."""

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
        """Learn from arrays `x`, `y`, or from a DataLoader of pairs given as `x`; returns the estimator."""
        batches = _batches(x, y, batch_size, shuffle, seed, self._device())
        if not self.history:
            self._prepare(batches)
        with _bar(progress) as bar:
            task = bar.add_task("epoch", total=epochs, note="")
            for _ in range(epochs):
                epoch = len(self.history)
                sigma = self.sigma_v(epoch) if callable(self.sigma_v) else self.sigma_v
                self.net.train()
                errors = [self._learn(xs, ys, sigma) for xs, ys in batches()]
                self.history.append({"sigma_v": sigma, "error": float(np.mean(errors))})
                bar.update(task, advance=1, note=f"error {self.history[-1]['error']:.4g}")
        return self

    def _device(self) -> torch.device:
        return next(self.net.parameters()).device

    @torch.no_grad()
    def _outputs(self, x: Any, batch_size: int, var_x: Any = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of the network's output for all rows of `x`, in evaluation mode."""
        mu, var = _tensor(x), None if var_x is None else _tensor(var_x)
        was_training = self.net.training
        self.net.eval()
        parts = []
        for start in range(0, len(mu), batch_size):
            rows = slice(start, start + batch_size)
            out = self.net(mu[rows].to(self._device()), None if var is None else var[rows])
            parts.append([t.flatten(1).cpu() for t in out])
        self.net.train(was_training)
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _tensor(value: Any) -> Tensor:
    out = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    return out.to(torch.get_default_dtype()) if out.dtype == torch.float64 else out


def _batches(
    x: Any, y: Any, size: int, shuffle: bool, seed: int, device: torch.device
) -> Callable[[], Iterator[Batch]]:
    if y is None:
        if not isinstance(x, Iterable) or isinstance(x, np.ndarray | Tensor):
            raise PartitionError("fit: give arrays `x` and `y`, or one DataLoader that yields pairs of them.")
        loader: Iterable[Any] = x
        return lambda: ((_tensor(a).to(device), _tensor(b).to(device)) for a, b in loader)
    xs, ys = _tensor(x).to(device), _tensor(y).to(device)
    if len(xs) != len(ys) or len(xs) == 0:
        raise PartitionError(f"fit: `x` has {len(xs)} rows, `y` has {len(ys)}.")
    generator = torch.Generator().manual_seed(seed)

    def epoch() -> Iterator[Batch]:
        order = (
            torch.randperm(len(xs), generator=generator, device="cpu")
            if shuffle
            else torch.arange(len(xs), device="cpu")
        )
        for rows in order.to(device).split(size):
            yield xs[rows], ys[rows]

    return epoch


def _bar(shown: bool) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}")
    return Progress(*columns, TimeRemainingColumn(), disable=not shown)
