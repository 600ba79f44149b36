"""How workers agree: the maximum of a few integers over a team, in one all-reduce, after which all raise or none.

    do all have the same v?     max(v) == -max(-v); who has no say writes the least of all integers
    has anybody a problem?      max(0 or 1)
    what is the largest v?      max(v)

`opening` is the vote that every call begins with, of a layer, a model, a save, a barrier: five integers ``[h, -h, p, -p,
problem]``, where h is a hash of the call and p a number such as that of a plan. So where one worker waits in a barrier, or
for data of its partition, while others call a layer, all of them get an error. Otherwise messages of different lengths
would meet, on which libraries abort the process. For layers and models (`agree_plan`) it answers three questions at once:

    do all make the same call?    h: the operator, the direction and the call, and the batch that a loader returned last
    do all have the same plan?    else all plan anew, together
    is any input bad?             then all raise the same `PartitionError`, before anything is sent

`agreement(False)`, or `GRIDWISE_AGREEMENT=off`, skips this vote, for programs whose workers are known to agree: all make
the same calls, and blocks change on all workers or on none. What that saves is in benchmarks/README.md.

Later votes are between workers that are known to be in the same call: a `Vote` holds any questions, and `all_same`,
`largest` and `differing` one of a kind. Where a step may fail, all try (`attempt`) before they vote: nobody raises alone.
Only the text of an error (`gather_lines`) takes memory proportional to the number of workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, NoReturn, TypeVar

import numpy as np
import xxhash

from ..errors import DataError, MismatchError, PartitionError
from .settings import is_on as is_set
from .supervision.finished_workers import ALL_CALL
from .switch import Switch
from .transports.base import Team, Transport

SHOWN = 8
"""The number of lines or ranks that an error lists before it abbreviates."""
UNREAD = 2
"""The problem of a worker that could not read its part of a batch."""
NO_SAY = np.iinfo(np.int64).min
"""What a worker writes where it has no value."""
Result = TypeVar("Result")


def key_of(text: str) -> int:
    """A hash of a text, below 2**62 and the same in every process."""
    return xxhash.xxh3_64_intdigest(text.encode()) >> 2


# The vote that opens a call


class Opening(NamedTuple):
    """What the vote has found: the largest number, whether all have given that, and the largest problem."""

    number: int
    is_common: bool
    problem: int


def opening(
    transport: Transport, team: Team, what: str, key: int, number: int = 0, problem: int = 0, batches: int = 0
) -> Opening:
    """The outcome of the vote of all workers that call `what`; raises on all of them unless they make the same call.

    `key` is the hash of the call; `batches` that of the data that it works on.
    """
    mine = key ^ batches
    votes = np.array([mine, -mine, number, -number, problem], dtype=np.int64)
    transport.all_max(votes, team, what)
    high, low, most, least, problem = votes.tolist()
    if high != -low:
        raise_mismatch(transport, team, what, key)
    return Opening(most, most == -least, problem)


def check_same_call(transport: Transport, team: Team, what: str, kind: str) -> None:
    """Return when all workers of the team have made the same `kind` of call; if they differ, raise on all of them."""
    if len(team) > 1:
        _, unread = transport.drawn_batches.of(team)
        if opening(transport, team, what, key_of(kind), problem=UNREAD if unread else 0).problem == UNREAD:
            raise_unread(transport, team, what, unread)


_switch = Switch(is_set("GRIDWISE_AGREEMENT", "on"))


def agreement(enabled: bool) -> AbstractContextManager[None]:
    """Switch the per-call agreement on or off, on all workers alike, while the body runs.

    Parameters
    ----------
    enabled : whether workers agree before each call

    Examples
    --------
    >>> with gridwise.agreement(False):
    ...     pass  # training steps whose shapes are known to agree
    """
    return _switch.to(enabled)


def is_on() -> bool:
    return _switch.value


def agree_call(transport: Transport, team: Team, what: str, key: int, changed: bool, problem: str | None) -> bool:
    """Whether any worker's input changed; raises like `agree_plan`."""
    return not agree_plan(transport, team, what, key, 0 if changed else 1, problem)


def agree_plan(transport: Transport, team: Team, what: str, key: int, plan: int, problem: str | None) -> int:
    """The number of the plan that all workers would use; 0 if they differ or one has none.

    Raises on all workers if they make different calls or one has a problem.
    """
    if not _switch.value or len(team) == 1:
        if problem is not None:
            raise PartitionError(f"{what}: {problem}")
        return plan
    batches, unread = transport.drawn_batches.of(team) if transport.drawn_batches else (0, None)
    trouble = UNREAD if unread is not None else int(problem is not None)
    found = opening(transport, team, what, key, plan, trouble, batches)
    if found.problem == UNREAD:
        raise_unread(transport, team, what, unread)
    if found.problem:
        raise PartitionError(f"{what} got an input that it cannot take.", gather_lines(transport, team, problem))
    return found.number if found.is_common else 0


# Votes within a call


class Vote:
    """Values that a team compares, and numbers of which it takes the largest, in one all-reduce."""

    def __init__(self) -> None:
        self._values: list[int] = []

    def equal(self, value: int | None) -> int:
        """Add a value that must be equal on all workers that have one; returns the position to `read`."""
        self._values += [NO_SAY, NO_SAY] if value is None else [value, -value]
        return len(self._values) - 2

    def largest(self, value: int | None) -> int:
        """Add a number of which the largest is to be read."""
        self._values += [NO_SAY if value is None else value, NO_SAY]
        return len(self._values) - 2

    def any(self, flag: bool) -> int:
        """Add a flag that is to be read as 1 if any worker has set it, else as 0."""
        return self.largest(int(flag))

    def count(self, transport: Transport, team: Team, what: str) -> None:
        self._array = np.array(self._values, dtype=np.int64)
        transport.all_max(self._array, team, what)

    def read(self, position: int) -> int | None:
        """The agreed value; None if the workers differ or none has one."""
        high, low = int(self._array[position]), int(self._array[position + 1])
        return high if high != NO_SAY and (low == NO_SAY or high == -low) else None


def agree_common(transport: Transport, team: Team, what: str, candidates: Sequence[int]) -> int:
    """The largest positive number that all workers have at the same position of their lists; 0 if there is none."""
    vote = Vote()
    asked = [vote.equal(number) for number in candidates]
    vote.count(transport, team, what)
    return max(vote.read(each) or 0 for each in asked)


def all_same(transport: Transport, team: Team, what: str, text: str | None) -> bool:
    """Whether all workers of the team that have a text have the same one."""
    vote = Vote()
    asked = vote.equal(None if text is None else key_of(text))
    vote.count(transport, team, what)
    return vote.read(asked) is not None


def largest(transport: Transport, team: Team, what: str, *numbers: int) -> list[int]:
    """The largest of each of the numbers; of flags, whether any worker has set them."""
    words = np.array(numbers, dtype=np.int64)
    transport.all_max(words, team, what)
    return words.tolist()


def differing(transport: Transport, team: Team, what: str, values: Sequence[int | None]) -> list[int]:
    """The positions in a long list of values at which the workers that have one do not have the same."""
    pairs = [[NO_SAY, NO_SAY] if value is None else [value, -value] for value in values]
    flat = np.array(pairs, dtype=np.int64).T.reshape(-1)
    transport.all_max(flat, team, what)
    high, low = flat.reshape(2, -1)
    return np.flatnonzero((high != NO_SAY) & (high != -low)).tolist()


def attempt(step: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    """The result of `step`, or its error, which must not be raised before the other workers know of it."""
    try:
        return step(), None
    except Exception as error:
        return None, error


# Errors, raised by all workers of a team after a vote


def raise_mismatch(transport: Transport, team: Team, what: str, key: int) -> NoReturn:
    """Raise the error for different calls or batches. Called by all workers of the team, after a vote."""
    told = transport.gather_bytes(
        json.dumps([key, transport.drawn_batches.of(team)[0]]).encode(), team, "the text of an error"
    )
    keys, batches = zip(*map(json.loads, told), strict=True)
    if len(set(keys)) == 1 and len(set(batches)) > 1:
        lines = gather_lines(transport, team, transport.drawn_batches.describe(team))
        transport.drawn_batches.forget_of(team)
        raise MismatchError(
            f"the workers called {what} with different batches.",
            lines,
            "draw every batch on every worker: all of them skip it or none does.",
        )
    raise MismatchError(
        "the workers called different operators, or the same ones in another order.",
        _who_called(transport, team, what, key, keys),
        ALL_CALL,
    )


def raise_unread(transport: Transport, team: Team, what: str, problem: str | None) -> NoReturn:
    """Raise the error for a batch that some workers could not read. Called by all workers of the team, after a vote."""
    lines = gather_lines(transport, team, problem)
    transport.drawn_batches.forget_of(team)
    raise DataError(f"{what}: a batch could not be read.", lines)


def _who_called(transport: Transport, team: Team, what: str, key: int, keys: Sequence[int]) -> list[str]:
    """What each worker called; if the descriptions are equal, a letter distinguishes layers, or calls of one layer."""
    lines = gather_lines(transport, team, f"called {what}")
    if len(lines) > 1:
        return lines
    letter = chr(ord("A") + min(list(dict.fromkeys(keys)).index(key), 25))
    return gather_lines(transport, team, f"called {what}: layer, call or direction {letter} of those with this name")


def gather_lines(transport: Transport, team: Team, line: str | None) -> list[str]:
    """The lines of all workers that have one, with equal lines merged, at most a screenful."""
    parts = transport.gather_bytes(json.dumps(line).encode(), team, "the text of an error")
    said: dict[str, list[int]] = {}
    for rank, part in zip(team, parts, strict=True):
        words = json.loads(part)
        if words is not None:
            said.setdefault(words, []).append(rank)
    lines = [f"{_workers(ranks)}: {words}" for words, ranks in said.items()]
    return lines[:SHOWN] + ([f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])


def _workers(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"worker {ranks[0]}"
    shown = ", ".join(map(str, ranks[:SHOWN]))
    return f"workers {shown}{', ...' if len(ranks) > SHOWN else ''}"
