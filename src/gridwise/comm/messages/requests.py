"""Pending messages, and what is done with them when they have arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .packing import ReceiveBuffer


class Request(Protocol):
    """Pending messages."""

    def wait(self) -> None:
        """Return when all messages have been sent or received."""


class Nothing:
    """A request without messages."""

    def wait(self) -> None:
        return None


NOTHING = Nothing()


@dataclass(slots=True)
class Unstaging:
    """Messages received into other tensors, usually on the host, that are copied to their destinations."""

    pending: Request
    pairs: list[tuple[Tensor, Tensor]]

    def wait(self) -> None:
        self.pending.wait()
        for tensor, host in self.pairs:
            tensor.copy_(host)


@dataclass(slots=True)
class Arriving:
    """Messages that are unpacked when they have arrived."""

    pending: Request
    buffers: list[ReceiveBuffer]

    def wait(self) -> None:
        self.pending.wait()
        for buffer in self.buffers:
            buffer.put()


@dataclass(slots=True)
class Both:
    """Two requests as one."""

    first: Request
    second: Request

    def wait(self) -> None:
        self.second.wait()
        self.first.wait()
