"""What the tests of launchers share: run a command line, and say how it went."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridwise.comm.launching.start import clean

JOB = str(Path(__file__).with_name("job.py"))
SECONDS = 600.0
LINE = re.compile(r"<(\w+) (\d+) of (\d+) on (\S+): (\S+)>")
DIED = re.compile(r"worker (\d+) of \d+ \([^)]*\) died")


@dataclass(frozen=True)
class Run:
    """How a job ended: its status, and all that it has printed."""

    status: int
    text: str

    @property
    def workers(self) -> dict[int, tuple[str, int, str, float]]:
        """By worker: transport, number of workers, host and the sum that it got."""
        found = LINE.findall(self.text)
        return {int(rank): (name, int(size), host, float(total)) for name, rank, size, host, total in found}

    @property
    def dead(self) -> set[int]:
        """The workers that were said to have died."""
        return set(map(int, DIED.findall(self.text)))


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Run:
    """Run a command line, and wait for its end; one that does not end is a failure."""
    variables = clean(os.environ) | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | dict(environment or {})
    done = subprocess.run(
        list(command), env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS
    )
    return Run(done.returncode, done.stdout)


def check_run(done: Run, transport: str, workers: int) -> None:
    """All workers have started over this transport and added up the same numbers."""
    assert done.status == 0, done.text
    total = workers * (workers + 1) / 2
    found = {rank: (name, size, number) for rank, (name, size, _, number) in done.workers.items()}
    assert found == dict.fromkeys(range(workers), (transport, workers, total)), done.text


def check_death(done: Run, transport: str, workers: int, victim: int) -> None:
    """The job has ended, not well, and says who died."""
    assert {rank: name for rank, (name, *_) in done.workers.items()} == dict.fromkeys(range(workers), transport), (
        done.text
    )
    assert done.status != 0, done.text
    assert done.dead == {victim}, done.text
    assert "as if nothing had happened" not in done.text


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options]
