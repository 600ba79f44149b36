"""The messages between a pool and its workers.

    worker                 pool
    Hello            ->
                     <-    Task
    Result | Failure ->
                     <-    ASK         when others have finished and this worker has not; and when time has run out
    Whereabouts      ->
    Overdue          ->                when it has waited for another worker longer than GRIDWISE_TIMEOUT
                     <-    RENEW       when a task has failed and all workers have answered
                     <-    STOP

Those about a task bear its number: one that was sent just before the task ended is read, and ignored, in the next.

They are pickled, which is safe because both ends of a connection have proved that they know a secret (see
`authenticated_listener`), and the connection never leaves the machine. A closed connection is information, not an error in
itself: the process at the other end is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ..supervision.finished_workers import Wait

GONE = (EOFError, OSError)
"""The exceptions of sending and receiving when the process at the other end is gone."""


class Command(Enum):
    """A message from the pool that carries no data."""

    ASK = "where does the task stand?"
    RENEW = "free the worlds of the tasks so far: messages of a failed one may still be under way there"
    STOP = "no more tasks"


@dataclass(frozen=True)
class Task:
    """One call, for the first `workers` workers of the pool."""

    number: int
    workers: int
    path: list[str]
    call: bytes


@dataclass(frozen=True)
class Result:
    """What a task returned on a worker, and how many collectives and messages of its worlds the worker took part in."""

    task: int
    value: bytes
    counts: dict[str, int]


@dataclass(frozen=True)
class Failure:
    """What a task raised on a worker. `exception` is None if it cannot be pickled."""

    task: int
    summary: str
    stack: str
    exception: bytes | None


@dataclass(frozen=True)
class Hello:
    """A worker has started. `leftover_files` lists files that would be left behind if it were killed."""

    rank: int
    leftover_files: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Whereabouts:
    """What a worker waits for (None if it is computing), and the stacks of its threads."""

    task: int
    wait: Wait | None
    stacks: str


@dataclass(frozen=True)
class Overdue:
    """A worker has waited for others longer than `limit` seconds, the GRIDWISE_TIMEOUT."""

    task: int
    limit: float
