"""One whole training step as one call: forward, observation, backward, update; compiled if asked.

    step = TrainStep(net, observe="indices", compile=True)
    for x, y, index in batches:
        mu, var = step(x, y, noise, index)

`compile=True` runs the same layers, with less overhead around them: on a CPU `torch.compile` fuses the step into a few
loops; on CUDA the kernels of a step are captured once in a CUDA graph and replayed. Every shape of a batch is compiled
or captured once. The first steps on CUDA run plainly (they are ordinary training steps): that warms up what must not be
set up during a capture. There is no second implementation of the mathematics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import PartitionError, UnsupportedError
from .data_struct import as_tensor
from .gaussian import Gaussian, Innovation
from .layer_block import LayerBlock
from .output_updater import observe, observe_at, observe_heteros
from .sequential import Sequential

_WARM_UP = 3  # plain steps before a capture


class _Batch(NamedTuple):
    """The tensors of one step; which of them are there depends on the kind of observation."""

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
        'heteros': outputs are means and noise variances in turn.
    compile
        Whether to compile (CPU) or capture (CUDA) the step.
    """

    def __init__(self, net: Sequential, observe: str = "all", compile: bool = False) -> None:
        if observe not in ("all", "indices", "heteros"):
            raise PartitionError(f"TrainStep: `observe` (={observe!r}) is 'all', 'indices' or 'heteros'.")
        if not isinstance(net, Sequential):
            raise PartitionError(
                f"TrainStep: `net` (={type(net).__name__}) must be a Sequential.\n"
                "  fix: the `.model` of a DDPSequential; forward, backward and step of a GridSequential."
            )
        self.net, self.observe, self.compile = net, observe, compile
        self._runner: Callable[[_Batch], Gaussian] | None = None

    @torch.no_grad()
    def __call__(self, x: Any, y: Any, noise: Any = 0.0, index: Any = None, var_x: Any = None) -> tuple[Tensor, Tensor]:
        """Learn from a batch; the mean and variance that the network predicted before it saw `y`."""
        given = self.net._input(x, var_x)
        like = given.mu
        at = None if index is None else torch.as_tensor(index).to(like.device, torch.long)
        batch = _Batch(given.mu, given.var, as_tensor(y, like), as_tensor(noise, like), at)
        out = self._run(batch)
        self.net.output_z_buffer.gaussian = out
        return out.mu, out.variance()

    def _run(self, batch: _Batch) -> Gaussian:
        if self._runner is None:
            if self.compile and self.net.after_backward is not None:
                raise UnsupportedError(
                    "TrainStep: a step that talks to other workers cannot be compiled.\n  fix: compile=False."
                )
            if not self.compile:
                self._runner = self._plain
            elif batch.mu_x.is_cuda:
                self._runner = _Captured(self._plain)
            else:
                self._runner = torch.compile(self._plain, dynamic=False)
        return self._runner(batch)

    def _plain(self, batch: _Batch) -> Gaussian:
        out = LayerBlock.forward(self.net, Gaussian(batch.mu_x, batch.var_x))
        LayerBlock.backward(self.net, self._innovation(out, batch), need_input=False)
        if self.net.after_backward is not None:
            self.net.after_backward()
        LayerBlock.step(self.net)
        return out

    def _innovation(self, out: Gaussian, batch: _Batch) -> Innovation:
        if self.observe == "heteros":
            return observe_heteros(out, batch.y)
        if self.observe == "indices":
            if batch.where is None:
                raise PartitionError("TrainStep: `index` is needed with observe='indices'.")
            return observe_at(out, batch.y, batch.noise, batch.where)
        return observe(out, batch.y, batch.noise)


class _Captured:
    """A step as CUDA graphs, one for each shape of a batch."""

    def __init__(self, step: Callable[[_Batch], Gaussian]) -> None:
        self.step = step
        self.seen: dict[Any, int] = {}
        self.graphs: dict[Any, tuple[torch.cuda.CUDAGraph, _Batch, Gaussian]] = {}

    def __call__(self, batch: _Batch) -> Gaussian:
        key = tuple(None if t is None else (t.shape, t.dtype) for t in batch)
        if key in self.graphs:
            graph, place, out = self.graphs[key]
            for target, value in zip(place, batch, strict=True):
                if target is not None and value is not None:
                    target.copy_(value)
            graph.replay()
            return Gaussian(out.mu.clone(), out.variance().clone(), out.jcb)
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.seen[key] <= _WARM_UP:
            return self._on_side_stream(batch)
        self._capture(key, batch)
        return self(batch)

    def _on_side_stream(self, batch: _Batch) -> Gaussian:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            out = self.step(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return out

    def _capture(self, key: Any, batch: _Batch) -> None:
        place = _Batch(*(None if t is None else t.clone() for t in batch))  # type: ignore[arg-type]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.step(place)
        self.graphs[key] = (graph, place, out)
