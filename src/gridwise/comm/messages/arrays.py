"""Gathering small arrays of all workers of a team: the basis of a partition's `allgather_data` and similar methods."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import MismatchError, PartitionError
from ..agreement import check_same_call
from ..transports.base import Team, Transport


def gathered_arrays(transport: Transport, team: Team, call: str, make: Callable[[], np.ndarray | None]) -> list[Any]:
    """The arrays (or None) of all workers, in the team's order; a problem on one worker is raised on all of them."""
    problem, body = "", b""
    try:
        array = make()
        body = b"" if array is None else _packed(array)
    except (PartitionError, TypeError, ValueError, OverflowError) as error:
        problem = str(error)
    header = json.dumps([call, problem]).encode()
    check_same_call(transport, team, call, "data of a partition")
    told = transport.gather_bytes(header + b"\n" + body, team, call)
    parts = [part.split(b"\n", 1) for part in told]
    calls, problems = zip(*(json.loads(part[0]) for part in parts), strict=True)
    if len(set(calls)) > 1:
        lines = "\n".join(f"  worker {rank}: {name}" for rank, name in zip(team, calls, strict=True))
        raise MismatchError(f"the workers called different things.\n{lines}")
    if any(problems):
        lines = "\n".join(f"  worker {r}: {text}" for r, text in zip(team, problems, strict=True) if text)
        raise PartitionError(f"{call} cannot send what it was given.\n{lines}")
    return [_unpacked(part[1]) if part[1] else None for part in parts]


def _packed(array: np.ndarray) -> bytes:
    if array.dtype.hasobject:
        raise PartitionError("only arrays of plain numbers can be sent: this one holds Python objects.")
    header = f"{array.dtype.str} {','.join(map(str, array.shape))}\n".encode()
    return header + np.ascontiguousarray(array).tobytes()


def _unpacked(data: bytes) -> np.ndarray:
    header, body = data.split(b"\n", 1)
    dtype, _, shape = header.decode().partition(" ")
    return np.frombuffer(body, dtype=np.dtype(dtype)).reshape([int(n) for n in shape.split(",") if n]).copy()
