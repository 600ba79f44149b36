"""Who a layer is to the other workers: its team, its name in errors, and the call that it is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...comm.transports.base import Team, Transport
from ...grid import union_of
from ...partition import Partition
from .agreement import key_of
from .operator import CallId


@dataclass(slots=True)
class Identity:
    """One layer, as all workers of its partitions know it."""

    title: str
    """What it is called in errors."""
    call_id: CallId
    """Its key, the same on all workers, and the call that it is in."""
    transport: Transport | None = None
    """None for a layer without partitions, which has nobody to agree with."""
    team: Team = ()
    is_outside: bool = False
    """Whether this worker is in none of the layer's partitions."""
    is_alone: bool = False
    """Whether this worker is the only one in them."""
    counted_as: str = ""
    """The text under which the transport counts layers with equal arguments."""
    copies: int = 0

    @classmethod
    def of_class(cls, name: str) -> Identity:
        return cls(name, CallId(key_of(name), 0))

    @classmethod
    def in_partitions(cls, name: str, partitions: Sequence[Partition], signature: str) -> Identity:
        """The layer of class `name` that takes part in `partitions`; `signature` tells it from others of its class."""
        transport = partitions[0].transport
        team = union_of([partition.geometry for partition in partitions])
        grids = " -> ".join(f"{partition.shape} of {_short(partition.ranks)}" for partition in partitions)
        text = f"{name} {[p.geometry.digest for p in partitions]} {signature}"
        return cls(
            title=f"{name}({grids}{', ' if signature else ''}{signature})",
            call_id=CallId(key_of(f"{text} #{transport.ordinal(text)}"), 0),
            transport=transport,
            team=team,
            is_outside=transport.rank not in team,
            is_alone=team == (transport.rank,),
            counted_as=text,
        )

    def copied(self) -> Identity:
        """The identity of a copy of the layer, which no worker can take for the original; all workers copy it."""
        self.copies += 1
        return replace(self, call_id=CallId(key_of(f"copy {self.copies} of {self.call_id.key}"), 0), copies=0)


def _short(ranks: tuple[int, ...]) -> str:
    return str(ranks) if len(ranks) <= 8 else f"({ranks[0]}, ..., {ranks[-1]})"
