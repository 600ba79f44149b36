"""The start of MPI waits for all processes of the job, in one call that nothing in this process can interrupt.

If some never come, because they left before `gridwise.world()`, the others would wait for ever. So a small process
beside each worker waits with it: when the start takes longer than `GRIDWISE_TIMEOUT` seconds, but at least `LEAST`, for some
import torch sooner than others, it says so on standard error and ends the worker, by a signal, after which the launcher
ends the job. Who is missing only the launcher knows:
each process has heard of nobody but itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import describe
from ..settings import RANKS, is_on, launched_number, timeout
from . import original_stderr

LEAST = 15.0
"""Seconds that processes may be apart at the start."""

_HELPER = """
import json, os, select, signal, sys
worker, limit, text = json.loads(sys.stdin.readline())
if not select.select([sys.stdin], [], [], limit)[0] and os.getppid() == worker:
    print(text, file=sys.stderr, flush=True)
    os.kill(worker, signal.SIGKILL)
"""


@contextmanager
def waiting_for_all(size: int | None) -> Iterator[None]:
    """Wait in the body for processes that MPI's launcher has started, no longer than `GRIDWISE_TIMEOUT`."""
    if size is None or size == 1 or not is_on("GRIDWISE_WATCH"):
        yield
        return
    limit = max(timeout(), LEAST)
    text = describe(
        f"\ngridwise: {_me()} has waited {limit:g} s in gridwise.world() for the start of MPI (`GRIDWISE_TIMEOUT`, at least "
        f"{LEAST:g}): not all of the {size} processes have come.",
        fix="let every process of the job call gridwise.world() before it ends, or allow more time.",
    )
    helper = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _HELPER],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=original_stderr.descriptor(),
    )
    assert helper.stdin is not None
    helper.stdin.write(json.dumps([os.getpid(), limit, text]).encode() + b"\n")
    helper.stdin.flush()
    try:
        yield
    finally:
        helper.stdin.close()
        helper.wait()


def _me() -> str:
    rank = launched_number(RANKS)
    return f"process {os.getpid()}" if rank is None else f"worker {rank}"
