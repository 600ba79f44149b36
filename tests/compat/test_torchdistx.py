"""A script of torchdistX's users, unchanged: in one process as torch's environment describes it, and started on two workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gridwise.comm.launching.start import environment_for

SCRIPT = Path(__file__).parent / "torchdistx_script.py"
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
ON_TWO = ["-c", "from gridwise.cli import main; main()", "compat", "-n", "2", "--transport", "gloo"]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_script_runs_unchanged(tmp_path: Path, workers: int) -> None:
    start = ["-m", "gridwise.compat"] if workers == 1 else ON_TWO  # its alias, in aliases.py
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *start, str(SCRIPT), str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        env=environment_for(workers, "gloo", ALONE if workers == 1 else None),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr  # at the end, after the script has destroyed the process groups
    assert sorted(done.stdout.splitlines()) == [f"well {rank}" for rank in range(workers)]
