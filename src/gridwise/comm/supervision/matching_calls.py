"""Checking that all workers of a team make the same call: one all-reduce of five integers, after which all raise or none.

The vote is that of layers (`nn.engine.agreement`): in the maximum of ``[h, -h, ...]``, where h is a hash of the call,
the second entry is minus the first exactly if all have the same h. So when one worker waits in a barrier, or for data of its
partition, while others call a layer, all of them get an error. Otherwise messages of different lengths would meet, on which
libraries abort the process.

The last of the five integers says that a worker has a problem, such as a batch that it could not read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import xxhash

from ...errors import DataError, MismatchError
from ..transports.base import Team, Transport
from .finished_workers import ALL_CALL

SHOWN = 8
"""The number of lines or ranks that an error lists before it abbreviates."""
UNREAD = 2
"""The last integer in the vote of a worker that could not read its part of a batch."""


def key_of(text: str) -> int:
    """A hash of a text, below 2**62 and the same in every process."""
    return xxhash.xxh3_64_intdigest(text.encode()) >> 2


def check_same_call(transport: Transport, team: Team, what: str, kind: str) -> None:
    """Return when all workers of the team have made the same `kind` of call; if they differ, raise on all of them."""
    if len(team) > 1:
        key, (_, problem) = key_of(kind), transport.drawn_batches.of(team)
        votes = np.array([key, -key, 0, 0, UNREAD if problem else 0], dtype=np.int64)
        transport.all_max(votes, team, what)
        if votes[0] != -votes[1]:
            raise_mismatch(transport, team, what, key)
        if votes[4] == UNREAD:
            raise_unread(transport, team, what, problem)


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
