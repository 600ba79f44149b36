"""The examples run as they stand, as a reader would start them; the long ones in `make soak`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = ("checkpoint", "deferred_init", "picture_on_a_grid", "plan", "tagi_digits", "tagi_noise")
LONG = ("tagi_ddp", "tagi_regression", "tagi_series")


def run(name: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("name", SHORT)
def test_it_runs(name, tmp_path):
    run(name, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", LONG)
def test_it_runs_for_longer(name, tmp_path):
    run(name, tmp_path)


def test_every_example_is_run_and_short_enough_to_read():
    found = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert set(found) == {*SHORT, *LONG, "lenet_mnist"}
    assert all(lines < 100 for lines in found.values()), found
