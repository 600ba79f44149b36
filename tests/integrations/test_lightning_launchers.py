"""The same script with `GridStrategy` under every launcher: only the first worker logs, and all end alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import files

from gridwise.comm.launching.start import mpi_missing

pytestmark = pytest.mark.integrations

SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {here!r})
import lightning
from lightning.pytorch.loggers import CSVLogger
from lightning_net import Pictures, Segmentation, trainer
from torch.utils.data import DataLoader
lightning.seed_everything(0)
run = trainer((1, 1, 2, 1), max_epochs=2, logger=CSVLogger("logs"), log_every_n_steps=1, enable_checkpointing=True)
module = Segmentation()
run.fit(module, DataLoader(Pictures(), 3), DataLoader(Pictures(), 2))
print("ended", run.global_rank, run.world_size, round(float(run.callback_metrics["validation"]), 4))
"""
BIN = Path(sys.executable).parent
LAUNCHERS = {
    "gridwise run": [BIN / "gridwise", "run", "-n", "2"],
    "torchrun": [BIN / "torchrun", "--nproc-per-node", "2"],
    "mpiexec": [BIN / "mpiexec", "-n", "2", sys.executable],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_script_runs(launcher, tmp_path):
    if launcher == "mpiexec" and mpi_missing() is not None:
        pytest.skip(str(mpi_missing()))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(here=str(Path(__file__).parent)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*map(str, LAUNCHERS[launcher]), str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "ended" in line]
    assert sorted(line[line.index("ended") :].split()[1] for line in lines) == ["0", "1"]
    assert len({line.split()[-1] for line in lines}) == 1
    (logs,) = (tmp_path / "logs").glob("**/metrics.csv")  # of one version: of one worker
    assert len(logs.read_text().splitlines()) > 6
    (saved,) = (tmp_path / "logs").glob("**/*.ckpt")
    assert (saved / "manifest.json").exists() or any(saved.iterdir())


def test_the_script_of_the_page_runs(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(files("trainers")["train.py"])
    command = [str(BIN / "gridwise"), "run", "-n", "4", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
