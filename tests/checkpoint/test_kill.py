"""kill -9 of a random worker at random moments of saves; see killing.py, which does it with real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def kills(folder: Path, *how: object) -> str:
    program = Path(__file__).with_name("killing.py")
    command = [sys.executable, str(program), str(folder), *map(str, how)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_a_killed_worker_never_costs_the_previous_checkpoint(tmp_path: Path) -> None:
    assert "9 kills survived: 3 replace, 3 series, 3 background" in kills(tmp_path, 0, 9)


def test_a_worker_killed_before_every_call_that_changes_a_file(tmp_path: Path) -> None:
    said = kills(tmp_path, "before", "replace")
    assert int(said.split()[0]) > 15, said


@pytest.mark.soak
@pytest.mark.parametrize("variant", ["replace", "series", "background"])
def test_a_worker_killed_before_and_after_every_call(tmp_path: Path, variant: str) -> None:
    said = kills(tmp_path, "everywhere", variant)
    assert int(said.split()[0]) > 30, said


@pytest.mark.soak
def test_two_hundred_kills(tmp_path: Path) -> None:
    assert "210 kills survived" in kills(tmp_path, 1000, 210)
