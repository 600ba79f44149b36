"""The example runs, a few steps of it, and says that both networks are one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "lenet_mnist.py"


@pytest.mark.soak  # `make demo` runs it
def test_a_few_steps(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "4"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"Largest difference of a loss: (\S+)\. ", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) < 1e-12
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"lenet_losses.png", "lenet_owners.png"}
