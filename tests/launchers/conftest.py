"""An interpreter whose mpi4py is built for Debian's Open MPI."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

import gridwise

HOME = Path(__file__).parents[2] / "out" / "open-mpi"
MPICC = "mpicc.openmpi"
BUILD = {"MPICC": MPICC, "MPI4PY_BUILD_MPICC": MPICC, "CFLAGS": "-O0"}  # optimised, it takes several times as long


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They take minutes and start daemons: only who asks for them gets them."""
    if "launchers" not in config.getoption("-m"):
        for item in items:
            if item.get_closest_marker("launchers"):
                item.add_marker(pytest.mark.skip(reason="`make test-launchers` runs it"))


@pytest.fixture(scope="session")
def open_mpi() -> str:
    """A Python of its own, with torch and Gridwise from this one; kept in out/, for building mpi4py takes minutes."""
    missing = [name for name in ("mpirun.openmpi", MPICC) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: tests/launchers/install.sh installs Open MPI")
    python = HOME / "bin" / "python"
    if not (HOME / "ready").exists():
        venv.create(HOME, clear=True, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--no-binary", "mpi4py", "mpi4py>=4"]
        built = subprocess.run(command, env=os.environ | BUILD, capture_output=True, text=True)
        if built.returncode:
            pytest.skip(f"mpi4py cannot be built for Open MPI: {built.stderr.strip().splitlines()[-1]}")
        (HOME / "ready").touch()
    # What is installed here is found after what is installed there.
    own = Path(sysconfig.get_path("purelib", vars={"base": str(HOME), "platbase": str(HOME)}))
    folders = [
        *site.getsitepackages(),
        Path(str(gridwise.__file__)).parents[1],
    ]  # an editable install is not in the first
    (own / "shared.pth").write_text("".join(f"{folder}\n" for folder in folders))
    return str(python)
