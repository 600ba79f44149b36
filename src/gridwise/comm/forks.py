"""Forks: a child of a worker, of a DataLoader say, has copies of its transports, and must not talk over them.

They share the worker's connections: what a child sends would be taken for the worker's, and what it receives would be
missed there. Ranks and local slices it may ask for.
"""

from __future__ import annotations

import os
from typing import NoReturn
from weakref import WeakSet

from ..errors import TransportError, describe

_living: WeakSet[KnowsForks] = WeakSet()


class KnowsForks:
    """A transport that knows whether it is the copy in a child of the worker."""

    rank: int
    size: int
    survives_forks = False
    """Whether a forked child of the worker may use it too."""
    is_forked = False
    """Whether this is the copy in a child of the worker, which shares its connections and would steal its messages."""

    def __init__(self) -> None:
        _living.add(self)

    def refuse_fork(self, what: str) -> NoReturn:
        """Raise, since `what` was called in the child."""
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
        each.is_forked = not each.survives_forks


os.register_at_fork(after_in_child=_mark_forked)
