"""A network with the shape of the rows it was fitted on and the noise of each epoch; its predictions and its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError, GridwiseError
from ..inference.finite_values import check_inputs
from ..inference.products import wide_type
from ..nn import LSTM, Conv2d, Linear, Sequential
from ..nn.gaussian import Gaussian
from .batches import Shape, as_rows

Noise = float | Callable[[int], float]
"""A standard deviation, or a function that gives one for each epoch (0, 1, ...)."""


class FittedNetwork:
    """Base of `Estimator`: the shape of rows, predictions for them, and the state."""

    def __init__(self, net: Sequential, sigma_v: Noise) -> None:
        self.net, self.sigma_v = net, sigma_v
        self.history: list[dict[str, float]] = []
        self._shape: Shape | None = None  # shape of a row of x; None before the first fit
        self._units = 0  # outputs of the network for one row
        self._start: dict[str, Tensor] | None = None  # the network's state before the first fit
        if not callable(sigma_v):
            self._sigma(0)

    def _sigma(self, epoch: int) -> float:
        sigma = float(self.sigma_v(epoch) if callable(self.sigma_v) else self.sigma_v)
        if not (math.isfinite(sigma) and sigma >= 0):
            at = f" in epoch {epoch}" if callable(self.sigma_v) else ""
            raise ArgumentError(
                f"{type(self).__name__}: `sigma_v` (={sigma}){at} is a standard deviation: zero or more, and finite."
            )
        return sigma

    def _check_features(self, x: Tensor, what: str) -> Shape:
        """The shape of a row for the network, as in the first fit; raises if the number of features differs."""
        shape = tuple(x.shape[1:])
        given, needed = math.prod(shape), _features_of(self.net, shape)
        if self._shape is not None:
            shape, needed = self._shape, math.prod(self._shape)
        if needed is not None and given != needed:
            first = next(iter(self.net.leaves())).get_layer_info()
            raise ArgumentError(
                f"{what}: `x` has {given} features in a row, the network needs {needed} ({first}).\n"
                f"  fix: `x` of shape (rows, {needed})."
            )
        return shape

    def _outputs_of(self, shape: Shape) -> int:
        """The number of outputs for one row of `shape`, found by trying one sample."""
        if self._shape is not None:
            return self._units
        trial = self.net.for_evaluation()
        given: Gaussian = trial._input(torch.zeros(1, *shape), None)
        if given.mu.shape[0] != 1:
            raise ArgumentError(
                f"{type(self).__name__}: the network takes a row of shape {shape} of `x` for {given.mu.shape[0]} samples."
            )
        try:
            with torch.no_grad():
                return trial.infer(given).mu.numel()
        except (GridwiseError, RuntimeError, ValueError, IndexError) as error:
            raise ArgumentError(
                f"{type(self).__name__}: the network cannot take a row of shape {shape} of `x`: {error}"
            ) from error

    # ---- predictions ------------------------------------------------------------------------------------------------
    def _device(self) -> torch.device:
        return next(self.net.parameters()).device

    def _last_sigma(self) -> float:
        return self.history[-1]["sigma_v"] if self.history else self._sigma(0)

    def _rows(self, x: object, what: str) -> Tensor:
        """`x` as rows for the network, checked."""
        if self._shape is None:
            raise ArgumentError(
                f"{type(self).__name__}.{what}: nothing has been fitted yet.\n"
                "  fix: fit(x, y) first, or load_state_dict; fit(x, y, epochs=0) for a network that is trained already."
            )
        rows = as_rows(x, "x", what)
        shape = self._check_features(rows, what)
        check_inputs(rows, what, "x")
        return rows.reshape(len(rows), *shape)

    @torch.no_grad()
    def _outputs(
        self, mu: Tensor, batch_size: int, var: Tensor | None = None, net: Sequential | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the network's output for all rows; recurrent layers start each row from zero.

        `net` is the result of `net.for_evaluation()`, for callers that reuse it.
        """
        if batch_size < 1:
            raise ArgumentError(f"predict: `batch_size` (={batch_size}) is less than one.")
        net = self.net.for_evaluation() if net is None else net
        parts = [] if len(mu) else [(torch.zeros(0, self._units, device="cpu"),) * 2]
        for start in range(0, len(mu), batch_size):
            rows = slice(start, start + batch_size)
            net.reset_lstm_states()
            out = net(mu[rows].to(self._device()), None if var is None else var[rows])
            parts.append(tuple(t.flatten(1).to("cpu", wide_type(t.dtype)) for t in out))
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    # ---- state ------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The network's state and all that predictions and further fits need; checkpoints take the estimator itself."""
        return {
            "kind": self._kind(),
            "net": self.net.state_dict(),
            "shape": None if self._shape is None else list(self._shape),
            "units": self._units,
            "sigma_v": [epoch["sigma_v"] for epoch in self.history],
            "error": [epoch["error"] for epoch in self.history],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the estimator that `state_dict` was called on; raises if its kind or network differs."""
        if state.get("kind") != self._kind():
            raise ArgumentError(f"load_state_dict: the state is that of {state.get('kind')}, this is {self._kind()}.")
        theirs, mine = ({k: tuple(t.shape) for k, t in d.items()} for d in (state["net"], self.net.state_dict()))
        if theirs != mine:
            name = next(k for k in sorted({*theirs, *mine}) if theirs.get(k) != mine.get(k))
            raise ArgumentError(
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

    def _network_now(self) -> dict[str, Tensor]:
        return {name: value.detach().cpu().clone() for name, value in self.net.state_dict().items()}


def _features_of(net: Sequential, shape: Shape) -> int | None:
    """The number of features that the first layer takes for a row of `shape`; None if it does not determine it."""
    first = next(iter(net.leaves()))
    if isinstance(first, LSTM):
        is_sequence = len(shape) == 2 and shape[1] == first.input_size
        return None if is_sequence else first.seq_len * first.input_size
    if isinstance(first, Conv2d):
        flat = first.flat_shape()
        return math.prod(flat) if len(shape) != 3 and flat is not None else None
    return first.input_size if isinstance(first, Linear) else None
