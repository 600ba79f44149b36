"""A step as CUDA graphs with movements between them: captured once, and replayed.

    graph ──► movement ──► graph ──► movement ──► ... ──► graph            on one worker: a single graph

Each graph is run as soon as it has been captured, so that the next movement finds its numbers, and the capture is
itself an ordinary step. A replay runs the same graphs and repeats the same movements in the same memory, which is why
moved tensors are kept. Random keys are in a tensor on the device and are drawn anew before every replay, in the order
in which an uncaptured step draws them, so the masks are those of an uncaptured step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from ...comm.graph_breaks import captured_by
from ...comm.messages.requests import Request
from ...errors import UnsupportedError

MOST_KEYS = 4096
"""How many random keys a step may draw."""


class Graph(Protocol):
    """Captures the kernels of a piece, and replays them."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def replay(self) -> None: ...


class CudaGraphs:
    """Makes CUDA graphs that share their memory: that is safe, as they always run in the order of their capture."""

    def __init__(self, device: torch.device) -> None:
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    def __call__(self) -> Graph:
        return _CudaGraph(self.pool)


class _CudaGraph:
    def __init__(self, pool: Any) -> None:
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool

    def begin(self) -> None:
        # a global mode would forbid work of other threads, such as pinning batches
        self._graph.capture_begin(self._pool, capture_error_mode="thread_local")

    def end(self) -> None:
        self._graph.capture_end()

    def replay(self) -> None:
        self._graph.replay()


class Keys:
    """Random keys on a device, all drawn anew before every replay."""

    def __init__(self, device: torch.device) -> None:
        self._values = torch.zeros(MOST_KEYS, dtype=torch.int64, device=device)
        self._draws: list[Callable[[], int]] = []

    def add(self, draw: Callable[[], int]) -> tuple[Tensor, int]:
        """The tensor of a new key on the device, and its first number."""
        if len(self._draws) == MOST_KEYS:
            raise UnsupportedError(
                f"a captured step draws more than {MOST_KEYS} random keys.\n  fix: capture a part of it."
            )
        self._draws.append(draw)
        return self._values[len(self._draws) - 1], draw()

    def fill(self, first: int, numbers: list[int]) -> None:
        """Set the keys from `first` on to these numbers, without waiting for the device."""
        if numbers:
            told = torch.tensor(numbers, dtype=torch.int64, device="cpu")
            self._values[first : first + len(numbers)].copy_(told, non_blocking=True)

    def draw(self) -> None:
        self.fill(0, [draw() for draw in self._draws])


class Pieces:
    """A captured step: graphs, and the movements between them."""

    def __init__(self, device: torch.device, new_graph: Callable[[], Graph], breaks: bool = True) -> None:
        self._new_graph, self._breaks = new_graph, breaks
        self._keys = Keys(device)
        self._new_keys: list[int] = []
        self._key_count = 0
        self._work: list[Callable[[], Any]] = []
        """What a replay does, in order."""
        self._open: Graph | None = None
        self.graphs = 0

    def capture(self, step: Callable[[], Any]) -> Any:
        """The result of `step`, which is run once."""
        self._begin()
        try:
            with captured_by(self), torch.autograd.set_multithreading_enabled(False):
                made = step()
            self._end()
        except BaseException:
            if self._open is not None:
                with contextlib.suppress(RuntimeError):  # the first error is the one to raise
                    self._open.end()
            raise
        return made

    def replay(self) -> None:
        with torch.no_grad():
            self._keys.draw()
            for work in self._work:
                work()

    def _begin(self) -> None:
        self._open = self._new_graph()
        self._open.begin()

    def _end(self) -> None:
        """Close the graph that is being captured, and run it."""
        graph, self._open = self._open, None
        assert graph is not None
        graph.end()
        self._keys.fill(self._key_count, self._new_keys)
        self._key_count += len(self._new_keys)
        self._new_keys = []
        graph.replay()
        self.graphs += 1
        self._work.append(graph.replay)

    @contextlib.contextmanager
    def _between(self) -> Iterator[None]:
        """Run the body between two graphs."""
        self._end()
        with captured_by(None):
            yield
        self._begin()

    # Called while the step is captured (`comm.graph_breaks.GraphCapture`)

    def note_node(self) -> None:
        return None

    def run_between_graphs(self, call: Callable[[], Any]) -> Any:
        if not self._breaks:
            with captured_by(None):
                return call()
        with self._between(), torch.no_grad():
            made = call()
            if made is None:
                self._work.append(call)
            elif isinstance(made, Tensor):
                self._work.append(lambda: made.copy_(call()))
            else:
                return self._started(call, made)
        return made

    def _started(self, call: Callable[[], Request], request: Request) -> _Movement:
        movement = _Movement(self, request)
        self._work.append(lambda: movement.start(call()))
        return movement

    def wait(self, movement: _Movement) -> None:
        with self._between(), torch.no_grad():
            movement.finish()
            self._work.append(movement.finish)

    def read_once(self, call: Callable[[], Any]) -> Any:
        with self._between():
            return call()

    def draw_each_replay(self, draw: Callable[[], int]) -> Tensor:
        place, number = self._keys.add(draw)
        self._new_keys.append(number)
        return place


class _Movement:
    """A movement under way, waited for after another piece of the step."""

    def __init__(self, pieces: Pieces, request: Request) -> None:
        self._pieces, self._request = pieces, request

    def start(self, request: Request) -> None:
        self._request = request

    def finish(self) -> None:
        self._request.wait()

    def wait(self) -> None:
        self._pieces.wait(self)
