"""A job that is started again when it ends with an error: `gridwise run --restarts 3 --grids 1x1x2x2,1x1x2x1`.

    start on 1x1x2x2 ──► a worker dies ──► end all that is left of the job ──► start on 1x1x2x1 ──► ...

The script does not know of it: it loads the newest checkpoint of its `Series` whenever it starts, on the grid that
`gridwise.world().grid()` then makes. Every start is a job of its own, with a name and a guardian, so that nothing of the last
one writes or listens when the next begins. torchrun does the same by `--max-restarts`, always on as many workers.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .start import spelt_exit, start_launcher

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which a user ends the job: it is not started again."""


@dataclass(frozen=True)
class Start:
    """How the job is started: a launcher's command line with its environment, and in words on how many workers."""

    command: list[str]
    environment: Mapping[str, str]
    on: str


class _Stopped(Exception):
    """A signal of `STOPS` has come."""

    def __init__(self, number: int) -> None:
        self.number = number


def run_with_restarts(starts: Sequence[Start], restarts: int, patience: float) -> int:
    """Start the job, and up to `restarts` times again until it succeeds; return an exit status as a shell has it.

    Start `i` is ``starts[i]``, or the last of them. Processes that are told to end have `patience` seconds to do so.
    """
    with _stops_raised():
        try:
            for i in range(restarts + 1):
                chosen = starts[min(i, len(starts) - 1)]
                if i:
                    _say(f"restart {i} of {restarts}, on {chosen.on}.")
                code = _run(chosen, patience)
                if code == 0:
                    return 0
                _say(f"the job on {chosen.on} ended with {spelt_exit(code)}.")
            return code if code > 0 else 128 - code
        except _Stopped as stopped:
            return 128 + stopped.number


def _run(chosen: Start, patience: float) -> int:
    """Run the job once, to the end of the last of its processes; its launcher's exit status."""
    started = start_launcher(chosen.command, chosen.environment, patience)
    (launcher,) = started.processes
    try:
        return launcher.wait()
    except _Stopped as stopped:
        launcher.send_signal(signal.SIGINT if stopped.number == signal.SIGINT else signal.SIGTERM)
        started.wait(patience)
        raise
    finally:
        started.kill()


@contextlib.contextmanager
def _stops_raised() -> Iterator[None]:
    """Turn the first signal of `STOPS` into `_Stopped`; further ones do nothing, since the job is being ended then."""

    def stop(number: int, frame: object) -> None:
        for each in STOPS:
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped(number)

    before = {each: signal.signal(each, stop) for each in STOPS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _say(text: str) -> None:
    print(f"gridwise run: {text}", file=sys.stderr, flush=True)
