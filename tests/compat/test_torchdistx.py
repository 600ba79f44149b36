"""A script of torchdistX's users, unchanged, on two workers over gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gridwise.comm.launching.start import environment_for

SCRIPT = Path(__file__).parent / "torchdistx_script.py"


def test_a_script_runs_unchanged_on_two_workers(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", "from gridwise.cli import main; main()", "compat", "-n", "2"]
    done = subprocess.run(
        [*command, "--transport", "gloo", str(SCRIPT), str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        env=environment_for(2, "auto"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr  # at the end, after the script has destroyed the process groups
    assert sorted(done.stdout.splitlines()) == ["well 0", "well 1"]
