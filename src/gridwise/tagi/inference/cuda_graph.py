"""A function of CUDA tensors as a CUDA graph: all its kernels are launched at once.

The first calls run without a graph, on a side stream, to warm up whatever must not be initialised during a capture. A
graph reads and writes the same memory whenever it is replayed. Inputs whose address changes from call to call are
therefore copied into buffers of the graph, and its outputs out of them; tensors that stay where they are (parameters)
are used in place, and the graph is captured again if they have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_WARM_UP = 3  # plain calls before a capture


class Captured:
    """`run` as a CUDA graph; its first `moving` inputs are at another address at every call."""

    def __init__(self, run: Callable[..., Sequence[Tensor]], moving: int) -> None:
        self.run, self.moving = run, moving
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._addresses: list[int] = []
        self._input_buffers: list[Tensor] = []
        self._outputs: Sequence[Tensor] = ()

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        self._calls += 1
        if self._calls <= _WARM_UP:
            return self._on_side_stream(tensors)
        addresses = [t.data_ptr() for t in tensors[self.moving :]]
        if self._graph is None or addresses != self._addresses:
            self._capture(tensors)
            self._addresses = addresses
        assert self._graph is not None
        torch._foreach_copy_(self._input_buffers, list(tensors[: self.moving]))
        self._graph.replay()
        fresh = [torch.empty_like(t) for t in self._outputs]
        torch._foreach_copy_(fresh, list(self._outputs))
        return fresh

    def _on_side_stream(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            out = list(self.run(*tensors))
        torch.cuda.current_stream().wait_stream(stream)
        return out

    def _capture(self, tensors: Sequence[Tensor]) -> None:
        self._input_buffers = [t.clone() for t in tensors[: self.moving]]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = self.run(*self._input_buffers, *tensors[self.moving :])
