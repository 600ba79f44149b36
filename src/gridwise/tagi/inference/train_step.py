"""A whole training step in one call: forward, observation, backward, update; optionally compiled.

    step = TrainStep(net, observe="indices", compile=True)
    for x, y, index in batches:
        mu, var = step(x, y, noise, index)

`compile=True` runs the same layers with less overhead: the step becomes a few loops of C++ on a CPU, and one CUDA graph
of a few Triton kernels on a GPU (`compiled_step.py`). Each batch shape is compiled once, which takes seconds to
minutes. There is no second implementation of the mathematics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import ArgumentError
from ..distributed.replicas import Made
from ..nn.data_struct import Values
from ..nn.gaussian import Gaussian, Innovation
from ..nn.layer_block import LayerBlock
from ..nn.output_updater import as_indices, observe, observe_at, observe_heteros
from ..nn.sequential import Sequential
from .compiled_step import Batch, CompiledStep
from .finite_values import as_observations, as_variances
from .tracing import is_traced


class _Batch(NamedTuple):
    """The tensors of one step; which are present depends on the kind of observation."""

    mu_x: Tensor
    var_x: Tensor | None
    y: Tensor
    noise: Tensor
    where: Tensor | None


class TrainStep:
    """Forward, observation, backward and update of a network in one call.

    Parameters
    ----------
    net
        The network, in training mode.
    observe
        'all': every output is observed; 'indices': some units of each sample (hierarchical softmax);
        'heteros': outputs alternate between means and noise variances.
    compile
        Whether to compile the step and, on CUDA, capture it in a CUDA graph.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.Linear(3, 1))
    >>> step = nn.TrainStep(net)
    >>> mu, var = step(torch.ones(2, 3), torch.zeros(2, 1), torch.full((2, 1), 0.1))
    >>> mu.shape
    torch.Size([2, 1])
    """

    def __init__(self, net: Sequential, observe: str = "all", compile: bool = False) -> None:
        if observe not in ("all", "indices", "heteros"):
            raise ArgumentError(f"TrainStep: `observe` (={observe!r}) is 'all', 'indices' or 'heteros'.")
        if not isinstance(net, Sequential):
            raise ArgumentError(
                f"TrainStep: `net` (={type(net).__name__}) must be a Sequential.\n"
                "  fix: the `.model` of a DDPSequential; forward, backward and step of a GridSequential."
            )
        self.net, self.observe, self.compile = net, observe, compile
        self._last_noise: tuple[Any, Tensor] | None = None
        self._run: Callable[[Batch], Gaussian] = CompiledStep(net, self._plain, observe) if compile else self._plain

    @torch.no_grad()
    def __call__(
        self, x: Values, y: Values, noise: Values = 0.0, index: Values | None = None, var_x: Values | None = None
    ) -> tuple[Tensor, Tensor]:
        """Learn from a batch; returns the mean and variance predicted before `y` was taken into account."""
        out = self._run(self._together("forward", lambda: self._batch(x, y, noise, index, var_x)))
        self.net.output_z_buffer.gaussian = out
        return out.mu, out.variance()

    @torch.no_grad()
    def epoch(
        self,
        x: Values,
        y: Values,
        noise: Values = 0.0,
        index: Values | None = None,
        *,
        batch_size: int = 16,
        order: Values | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Learn from all rows once, in batches; returns mean and variance of each row, predicted before it was learnt.

        A compiled step of a small network on a CPU takes one call for all batches of `batch_size` rows.

        Parameters
        ----------
        x, y, noise, index
            As in a call, for all rows; `noise` is one number, or of the shape of `y`.
        batch_size
            Rows of a batch; the last may be smaller.
        order
            The rows in the order in which they are learnt; by default 0, 1, 2, ... Rows that are left out are not learnt, and
            their predictions are NaN.

        Examples
        --------
        >>> from gridwise.tagi import nn
        >>> step = nn.TrainStep(nn.Sequential(nn.Linear(3, 1)))
        >>> mu, var = step.epoch(torch.ones(8, 3), torch.zeros(8, 1), 0.1, batch_size=4)
        >>> mu.shape
        torch.Size([8, 1])
        """
        if batch_size < 1:
            raise ArgumentError(f"TrainStep.epoch: `batch_size` (={batch_size}) is less than one.")
        whole = self._together("forward", lambda: self._rows(x, y, noise, index))
        rows = len(whole[0])
        turns = torch.arange(rows) if order is None else torch.as_tensor(order).to("cpu", torch.long).flatten()
        if len(turns) and not 0 <= int(turns.min()) <= int(turns.max()) < rows:
            raise ArgumentError(f"TrainStep.epoch: `order` has rows that are not among the {rows} of `x`.")
        mu = var = torch.zeros(rows, 0)
        for start, count, out in self._parts(whole, turns, batch_size):
            if start == 0:
                mu, var = (t.new_full((rows, *t.shape[1:]), torch.nan) for t in out)
            places = turns[start : start + count].to(mu.device)
            mu[places], var[places] = out
        return mu, var

    def _rows(self, x: Values, y: Values, noise: Values, index: Values | None) -> _Batch:
        """The data of an epoch, with a row for each of `x`; one number for the noise has no dims."""
        whole = self._batch(x, y, noise, index, None)
        rows = len(whole.mu_x)
        parts = []
        for name, t in (("y", whole.y), ("noise", whole.noise), ("index", whole.where)):
            if t is None or (name == "noise" and t.numel() == 1):
                parts.append(None if t is None else t.reshape(()))
            elif t.ndim > 1 and len(t) == rows:
                parts.append(t)
            elif rows and t.numel() % rows == 0:
                parts.append(t.reshape(rows, -1))
            else:
                raise ArgumentError(f"TrainStep.epoch: `{name}` of shape {tuple(t.shape)} is not that of {rows} rows.")
        return _Batch(whole.mu_x, whole.var_x, *parts)  # type: ignore[arg-type]

    def _parts(self, whole: _Batch, turns: Tensor, size: int) -> Iterator[tuple[int, int, tuple[Tensor, Tensor]]]:
        """The steps of an epoch, many at once where that can be: from which turn, of how many rows, their prediction."""
        start = 0
        while start < len(turns):
            here = turns[start : start + size]
            left = (len(turns) - start) // size * size
            if left and isinstance(self._run, CompiledStep):
                made = self._run.many(whole, turns[start : start + left], size)
                if made is not None:
                    yield start, left, made
                    start += left
                    continue
            at = here.to(whole.mu_x.device)
            batch = _Batch(*(t if t is None or not t.ndim else t[at] for t in whole))  # type: ignore[arg-type]
            out = self._run(batch) if len(here) == size else self._plain(batch)
            self.net.output_z_buffer.gaussian = out
            yield start, len(here), (out.mu, out.variance())
            start += size

    def _batch(self, x: Values, y: Values, noise: Values, index: Values | None, var_x: Values | None) -> _Batch:
        given = self.net._input(x, var_x)
        like = given.mu
        at = None if index is None else torch.as_tensor(index).to(like.device, torch.long)
        return _Batch(given.mu, given.var, as_observations(y, like), self._as_noise(noise, like), at)

    def _as_noise(self, noise: object, like: Tensor) -> Tensor:
        """`noise` as a tensor; a repeated number reuses its tensor, so it is copied to a GPU only once."""
        if not isinstance(noise, float):
            return as_variances(noise, like, "var_obs")
        key = noise, like.dtype, like.device
        if self._last_noise is None or self._last_noise[0] != key:
            self._last_noise = key, as_variances(noise, like, "var_obs")
        return self._last_noise[1]

    def _together(self, verb: str, make: Callable[[], Made]) -> Made:
        """The result of `make`; where several workers train the network, all raise if it fails on one of them."""
        team = self.net.replicas
        return make() if team is None else team.agreed(verb, make)

    def _plain(self, tensors: Batch) -> Gaussian:
        batch = _Batch(*tensors)  # type: ignore[arg-type]
        out = LayerBlock.forward(self.net, Gaussian(batch.mu_x, batch.var_x))
        self.net.backward(self._together("backward", lambda: self._innovation(out, batch)))
        self.net.step()
        return out

    def _innovation(self, out: Gaussian, batch: _Batch) -> Innovation:
        if self.observe == "heteros":
            return observe_heteros(out, batch.y)
        if self.observe == "indices":
            if batch.where is None:
                raise ArgumentError("TrainStep: `index` is needed with observe='indices'.")
            unchecked = is_traced() or batch.where.is_cuda  # the host would have to wait for the values
            return observe_at(out, batch.y, batch.noise, batch.where if unchecked else as_indices(out, batch.where))
        return observe(out, batch.y, batch.noise)
