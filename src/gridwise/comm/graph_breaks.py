"""Communication while a step is captured as CUDA graphs: one graph ends before each movement, and another begins after it.

A graph records kernels of one device. Messages, interprocess events and copies through the host cannot be part of it, so
the capturing object is notified of every movement, carries it out between two graphs, and repeats it at every replay
(`nn.engine.graph_pieces`). Outside a capture, which is nearly always, a movement is a plain call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor


class GraphCapture(Protocol):
    """An object that captures a step."""

    def run_between_graphs(self, call: Callable[[], Any]) -> Any:
        """The result of `call`, repeated into the same memory at every replay: a tensor, None, or a completed request."""

    def note_node(self) -> None:
        """Note that an autograd node was recorded that may communicate in backward."""

    def read_once(self, call: Callable[[], Any]) -> Any:
        """The result of `call` now; replays reuse it and do not call again."""

    def draw_each_replay(self, draw: Callable[[], int]) -> Tensor:
        """The number that `draw` returns, on the device; drawn anew at every replay."""


class _Current(threading.local):
    capture: GraphCapture | None = None


_current = _Current()


def capturing() -> GraphCapture | None:
    """The object that captures what this thread does; None if there is no capture."""
    return _current.capture


@contextmanager
def captured_by(capture: GraphCapture | None) -> Iterator[None]:
    """Report this thread's movements to `capture` while the body runs; None: to nobody."""
    before, _current.capture = _current.capture, capture
    try:
        yield
    finally:
        _current.capture = before


def read_by_host(read: Callable[[], Any]) -> Any:
    """The value that `read` gets from the device; during a capture it is read once and kept for all replays."""
    capture = _current.capture
    return read() if capture is None else capture.read_once(read)
