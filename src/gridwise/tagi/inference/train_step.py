"""A whole training step in one call: forward, observation, backward, update; optionally compiled.

    step = TrainStep(net, observe="indices", compile=True)
    for x, y, index in batches:
        mu, var = step(x, y, noise, index)

`compile=True` runs the same layers with less overhead: the step becomes a few loops of C++ on a CPU, and one CUDA graph
of a few Triton kernels on a GPU (`compiled_step.py`). Each batch shape is compiled once, which takes seconds to
minutes. There is no second implementation of the mathematics.
"""

from __future__ import annotations

from collections.abc import Callable
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
        self._run: Callable[[Batch], Gaussian] = CompiledStep(net, self._plain) if compile else self._plain

    @torch.no_grad()
    def __call__(
        self, x: Values, y: Values, noise: Values = 0.0, index: Values | None = None, var_x: Values | None = None
    ) -> tuple[Tensor, Tensor]:
        """Learn from a batch; returns the mean and variance predicted before `y` was taken into account."""
        out = self._run(self._together("forward", lambda: self._batch(x, y, noise, index, var_x)))
        self.net.output_z_buffer.gaussian = out
        return out.mu, out.variance()

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
