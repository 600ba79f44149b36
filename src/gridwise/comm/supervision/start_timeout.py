"""A timeout for the start of MPI, which waits for all processes of the job in a call that cannot be interrupted from within.

If some never get there, because they exited before `gridwise.world()`, the others would wait for ever. So a small process
next to each worker waits with it: if the start takes longer than `GRIDWISE_TIMEOUT` seconds (at least `MIN_SECONDS`, since some
import torch sooner than others), it says so on standard error and kills the worker, after which the launcher ends the job.
It cannot say who is missing: at that point each process knows only of itself.
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

MIN_SECONDS = 15.0
"""Lower limit of the timeout, in seconds: processes may start this far apart."""

_HELPER = """
import json, os, select, signal, sys
worker, limit, text = json.loads(sys.stdin.readline())
if not select.select([sys.stdin], [], [], limit)[0] and os.getppid() == worker:
    print(text, file=sys.stderr, flush=True)
    os.kill(worker, signal.SIGKILL)
"""


@contextmanager
def waiting_for_all(size: int | None) -> Iterator[None]:
    """Limit the body, which waits for the `size` processes of an MPI job to start, to `GRIDWISE_TIMEOUT` seconds."""
    if size is None or size == 1 or not is_on("GRIDWISE_WATCH"):
        yield
        return
    limit = max(timeout(), MIN_SECONDS)
    text = describe(
        f"\ngridwise: {_me()} has waited {limit:g} s in gridwise.world() for the start of MPI (`GRIDWISE_TIMEOUT`, at least "
        f"{MIN_SECONDS:g}): not all of the {size} processes have come.",
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
