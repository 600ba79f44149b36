"""The ten-minute path: the commands and files of the quick start page, as a reader would type and save them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from pages import ROOT, blocks, files

INSTALL = ["git clone <where you found Gridwise> gridwise", "cd gridwise", "make setup", ". .venv/bin/activate"]
"""What a test cannot do again in seconds: this environment was made so."""


def commands() -> list[str]:
    return [line for block in blocks("quick-start", "bash") for line in block.splitlines() if line]


def type_in(command: str, folder: Path) -> str:
    """Run a command of the page in `folder`, with this environment's programs, and return what it prints."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def losses_in(text: str) -> list[tuple[int, float]]:
    return [
        (int(step), float(loss)) for step, loss in re.findall(r"^step (\d): loss (\d\.\d{4}) on", text, re.MULTILINE)
    ]


def test_the_page_leads_to_a_model_on_four_workers_with_the_losses_of_one(tmp_path):
    for name, text in files("quick-start").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    typed = commands()
    assert typed[: len(INSTALL)] == INSTALL
    said = {command: type_in(command, tmp_path) for command in typed[len(INSTALL) :] if command != "gridwise doctor"}
    assert list(said) == ["python make_data.py", "gridwise run -n 4 train.py", "python train.py"]
    on_four, on_one = (losses_in(said[command]) for command in ("gridwise run -n 4 train.py", "python train.py"))
    assert [step for step, _ in on_four] == [0, 1, 2, 3]
    assert all(abs(four - one) <= 2e-4 for (_, four), (_, one) in zip(on_four, on_one, strict=True))
    assert on_four[-1][1] < on_four[0][1]
    (shown,) = [block for block in blocks("quick-start", "text") if "step 0" in block]
    assert all(abs(page - ran) <= 1e-3 for (_, page), (_, ran) in zip(losses_in(shown), on_four, strict=True))


def test_the_install_commands_do_what_the_page_says():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^setup: ", makefile, re.MULTILINE)
    assert "-m venv .venv" in makefile
    done = subprocess.run(["make", "-n", "setup"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (ROOT / "src" / "gridwise" / "cli" / "doctor.py").exists()
