"""Who may not call: a forked child, and whoever has kept something of a world that was closed.

A child of a worker, of a DataLoader say, has copies of its transports, and shares the worker's connections: what it sends
would be taken for the worker's, and what it receives would be missed there. Ranks and local slices it may ask for.
"""

from __future__ import annotations

import os
from typing import NoReturn
from weakref import WeakSet

from ...errors import TransportError, describe

_living: WeakSet[Refuses] = WeakSet()


class Refuses:
    """A transport that knows whether it is closed, or the copy in a child of the worker."""

    rank: int
    size: int
    survives_forks = False
    """Whether a forked child of the worker may use it too."""
    is_closed = False
    refuses = False
    """Whether calls are refused: it is closed, or the copy in a child, which would steal the worker's messages."""

    def __init__(self) -> None:
        _living.add(self)

    def refuse(self, what: str) -> NoReturn:
        """Raise, since `what` was called where it must not be."""
        if self.is_closed:
            raise TransportError(
                describe(
                    f"{what} was called on worker {self.rank} of {self.size} in a world that was closed.",
                    fix="call deactivate() of a world when nothing of it is used any more: layers and partitions made "
                    "from it end with it.",
                )
            )
        raise TransportError(
            describe(
                f"{what} was called in a process that worker {self.rank} of {self.size} has forked: the connections to the "
                "other workers are the worker's own.",
                fix="let the worker itself talk to the others; its children (of a DataLoader, say) may ask for ranks and "
                "local slices.",
            )
        )


def _mark_forked() -> None:
    for each in _living:
        each.refuses = each.refuses or not each.survives_forks


os.register_at_fork(after_in_child=_mark_forked)
