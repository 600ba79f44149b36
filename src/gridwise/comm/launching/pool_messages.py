"""What a pool and its workers say to one another, over the connection between them.

    worker                 pool
    Hello            ->
                     <-    Task
    Result | Failure ->
                     <-    ASK         when others have finished, and this one has not; and when time has run out
    Whereabouts      ->
    Overdue          ->                when it has waited for another worker longer than GRIDWISE_TIMEOUT
                     <-    RENEW       when a task has failed and all have answered
                     <-    STOP

They are pickled, which is safe because both ends of a connection have proved that they know a secret (see
`authenticated_listener`), and it never leaves the machine. A closed connection is news, not an error of its own: whoever
holds the other end is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ..supervision.finished_workers import Wait

GONE = (EOFError, OSError)
"""What sending and receiving raise when nobody is at the other end."""


class Command(Enum):
    """What a pool says without further words."""

    ASK = "where does the task stand?"
    RENEW = "free the worlds of the tasks so far: messages of a failed one may still be under way there"
    STOP = "no more tasks"


@dataclass(frozen=True)
class Task:
    """One call, for the first `workers` of the pool."""

    number: int
    workers: int
    path: list[str]
    call: bytes


@dataclass(frozen=True)
class Result:
    """What a task returned on a worker, and in how many collectives and messages of its worlds it took part."""

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
    """A worker that has started. `litter` are files that it cannot remove when it is killed."""

    rank: int
    litter: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Whereabouts:
    """What a worker waits for, None if it computes, and what every thread of it is doing."""

    wait: Wait | None
    stacks: str


@dataclass(frozen=True)
class Overdue:
    """A worker has waited for others longer than `limit` seconds, the GRIDWISE_TIMEOUT."""

    limit: float
