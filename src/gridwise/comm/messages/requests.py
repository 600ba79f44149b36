"""Messages on their way, and what is done with them when they have arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .packing import Landing


class Request(Protocol):
    """Messages on their way."""

    def wait(self) -> None:
        """Return when all have been sent and have arrived."""


class Nothing:
    """No message at all."""

    def wait(self) -> None:
        return None


NOTHING = Nothing()


@dataclass(slots=True)
class Unstaging:
    """Messages that were received on the host and belong on a device."""

    pending: Request
    pairs: list[tuple[Tensor, Tensor]]

    def wait(self) -> None:
        self.pending.wait()
        for tensor, host in self.pairs:
            tensor.copy_(host)


@dataclass(slots=True)
class Arriving:
    """Parcels that are brought to their places once they have arrived."""

    pending: Request
    landings: list[Landing]

    def wait(self) -> None:
        self.pending.wait()
        for landing in self.landings:
            landing.put()


@dataclass(slots=True)
class Both:
    """Messages on two roads."""

    first: Request
    second: Request

    def wait(self) -> None:
        self.second.wait()
        self.first.wait()
