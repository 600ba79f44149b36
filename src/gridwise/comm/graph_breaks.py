"""Movements while a step is captured as CUDA graphs: a graph ends before each of them, and another begins after it.

A graph takes up kernels of one device. Messages, interprocess events and what passes through the host cannot be part of one:
whoever captures is told of every movement, carries it out between two graphs, and does so again at every replay
(`nn.engine.graph_pieces`). While nothing is captured, which is nearly always, a movement is a plain call.
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
    """Who captures a step."""

    def moved(self, call: Callable[[], Any]) -> Any:
        """What `call` returns, now and, in the same memory, at every replay: a tensor, None, or a request, waited for."""

    def node(self) -> None:
        """A node of autograd was recorded that may move something in backward."""

    def read(self, call: Callable[[], Any]) -> Any:
        """What `call` returns now; it is the same at every replay, where it is not called."""

    def drawn(self, draw: Callable[[], int]) -> Tensor:
        """The number that `draw` returns, now and anew at every replay, on the device."""


class _Current(threading.local):
    breaks: Breaks | None = None


_current = _Current()


def capturing() -> Breaks | None:
    """Who captures what this thread does, if somebody does."""
    return _current.breaks


@contextmanager
def captured_by(breaks: Breaks | None) -> Iterator[None]:
    """While the body runs, tell `breaks` of movements; None: nobody."""
    before, _current.breaks = _current.breaks, breaks
    try:
        yield
    finally:
        _current.breaks = before


def movement(method: Method) -> Method:
    """A method of a transport that moves tensors, and is carried out between two graphs where it moves any."""

    @functools.wraps(method)
    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        breaks = _current.breaks
        if breaks is None or self.size == 1:
            return method(self, *args, **kwargs)
        return breaks.moved(functools.partial(method, self, *args, **kwargs))

    return moved  # type: ignore[return-value]


def read_by_host(read: Callable[[], Any]) -> Any:
    """What `read` finds on the device; where a step is captured, once and for all replays."""
    breaks = _current.breaks
    return read() if breaks is None else breaks.read(read)
