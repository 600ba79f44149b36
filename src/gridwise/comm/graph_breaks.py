"""Communication while a step is captured as CUDA graphs: one graph ends before each movement, and another begins after it.

A graph records kernels of one device. Messages, interprocess events and copies through the host cannot be part of it, so
the capturing object is notified of every movement, carries it out between two graphs, and repeats it at every replay
(`nn.engine.graph_pieces`). Outside a capture, which is nearly always, a movement is a plain call.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from torch import Tensor

Method = TypeVar("Method", bound=Callable[..., Any])


class Breaks(Protocol):
    """An object that captures a step."""

    def moved(self, call: Callable[[], Any]) -> Any:
        """The result of `call`, repeated into the same memory at every replay: a tensor, None, or a completed request."""

    def node(self) -> None:
        """Note that an autograd node was recorded that may communicate in backward."""

    def read(self, call: Callable[[], Any]) -> Any:
        """The result of `call` now; replays reuse it and do not call again."""

    def drawn(self, draw: Callable[[], int]) -> Tensor:
        """The number that `draw` returns, on the device; drawn anew at every replay."""


class _Current(threading.local):
    breaks: Breaks | None = None


_current = _Current()


def capturing() -> Breaks | None:
    """The object that captures what this thread does; None if there is no capture."""
    return _current.breaks


@contextmanager
def captured_by(breaks: Breaks | None) -> Iterator[None]:
    """Report this thread's movements to `breaks` while the body runs; None: to nobody."""
    before, _current.breaks = _current.breaks, breaks
    try:
        yield
    finally:
        _current.breaks = before


def movement(method: Method) -> Method:
    """Decorate a transport method that moves tensors: during a capture it runs between two graphs."""

    @functools.wraps(method)
    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        breaks = _current.breaks
        if breaks is None or self.size == 1:
            return method(self, *args, **kwargs)
        return breaks.moved(functools.partial(method, self, *args, **kwargs))

    return moved  # type: ignore[return-value]


def read_by_host(read: Callable[[], Any]) -> Any:
    """The value that `read` gets from the device; during a capture it is read once and kept for all replays."""
    breaks = _current.breaks
    return read() if breaks is None else breaks.read(read)
