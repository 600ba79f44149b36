"""What a pool and its workers say to one another, over the line between them.

    worker                 pool
    Hello            ->
                     <-    Task
    Result | Failure ->
                     <-    AskWait       when others have finished, and this one has not
    Waits            ->
                     <-    AskStacks     when time has run out
    Stacks           ->
    Overdue          ->                  when it has waited for another worker longer than GRIDWISE_TIMEOUT
                     <-    Renew         when a task has failed and all have answered
                     <-    Stop

They are pickled, which is safe because both ends of a line have proved that they know a secret (see
`authenticated_listener`), and it never leaves the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..supervision.finished_workers import Wait


@dataclass(frozen=True)
class Task:
    """One call, for the first `workers` of the pool."""

    number: int
    workers: int
    path: list[str]
    call: bytes


@dataclass(frozen=True)
class Result:
    """What a task returned on a worker, and in how many collectives and messages of its world it took part."""

    task: int
    value: bytes
    counts: dict[str, int]


@dataclass(frozen=True)
class Failure:
    """What a task raised on a worker, or would have. `exception` is None if it cannot be pickled."""

    task: int
    summary: str
    stack: str
    exception: bytes | None
    is_stuck: bool = False
    """Whether the task still waits, in a library that cannot be left: the worker can only be ended."""


@dataclass(frozen=True)
class Hello:
    """A worker that has started. `litter` are files that it cannot remove when it is killed."""

    rank: int
    pid: int
    litter: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class AskWait:
    """What does this worker wait for?"""


@dataclass(frozen=True)
class Waits:
    """What a worker waits for; None if it computes."""

    wait: Wait | None


@dataclass(frozen=True)
class AskStacks:
    """Where does the task stand?"""


@dataclass(frozen=True)
class Stacks:
    """What every thread is doing."""

    text: str


@dataclass(frozen=True)
class Overdue:
    """A worker has waited for others longer than `limit` seconds, the GRIDWISE_TIMEOUT."""

    limit: float


@dataclass(frozen=True)
class Renew:
    """Free the worlds of the tasks so far: messages of a failed one may still be under way there."""


@dataclass(frozen=True)
class Stop:
    """No more tasks."""
