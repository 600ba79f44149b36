"""The script that runs the benchmarks: one that fails does not hide the others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parents[1] / "benchmarks" / "run.py"


def run(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(RUN, folder)
    (folder / "a_bad.py").write_text("raise SystemExit(3)")
    (folder / "b_good.py").write_text("print('measured')")
    return subprocess.run([sys.executable, str(folder / RUN.name), *names], capture_output=True, text=True, check=False)


def test_a_failing_benchmark_is_named_after_all_have_run(tmp_path):
    done = run(tmp_path)
    assert done.returncode != 0
    assert "measured" in done.stdout
    assert done.stderr.strip() == "failed: a_bad"


def test_benchmarks_by_name(tmp_path):
    assert run(tmp_path, "b_good").returncode == 0
    unknown = run(tmp_path, "b_good", "c_none")
    assert unknown.returncode != 0
    assert "no benchmark c_none; there are a_bad, b_good" in unknown.stderr
    assert "measured" not in unknown.stdout
