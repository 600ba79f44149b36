"""Old names: found here, also in child processes, under launchers, beside an installed library, and not after it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gridwise.comm.launching.start import environment_for
from gridwise.errors import GridwiseError
from gridwise_compat import install
from gridwise_compat.finder import STARTUP, VARIABLE, CompatFinder

PARENT = """
import subprocess, sys
import distdl, torchdistx.fake, pytagi.nn
from distdl.nn.conv import DistributedConv2d
import gridwise_compat.distdl.nn.conv as here
assert distdl.nn.conv is here
assert DistributedConv2d is here.DistributedConv2d
assert __name__ == "__main__"
try:
    import distdl.nowhere
except ModuleNotFoundError as error:
    assert "docs/from-distdl.md" in str(error)
else:
    raise AssertionError
code = "import sys; assert 'torch' not in sys.modules; import torchdistx.gossip_grad as g; print(g.Topology.CUBE.name)"
print(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip(), *sys.argv[1:])
"""
WORKER = """
from mpi4py import MPI
from distdl.backends.mpi.partition import MPIPartition
half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank)
if MPI.COMM_WORLD.rank == 0:  # alone, before anybody has a partition of the world
    P = MPIPartition(half).create_partition_union(MPIPartition())
    assert P.size == 1
    P.deactivate()
P = MPIPartition(MPI.COMM_WORLD)
print("".join(["sum ", str(int(P.allreduce_data(__import__("numpy").array([P.rank + 1]))[0])), "\\n"]), end="", flush=True)
"""


def run(*command: str, folder: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """A fresh program, which has inherited nothing of gridwise_compat."""
    environment = environment_for(1, "auto")
    folders = [path, *environment["PYTHONPATH"].split(os.pathsep)]
    environment["PYTHONPATH"] = os.pathsep.join(each for each in folders if each not in ("", STARTUP))
    for name in ("GRIDWISE_TRANSPORT", VARIABLE):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
    )


def test_the_package_has_an_alias_in_gridwise() -> None:
    import gridwise

    assert gridwise.compat.install is install
    assert importlib.import_module("gridwise.compat") is importlib.import_module("gridwise_compat")


def test_tests_of_old_names_leave_this_process_as_it_was() -> None:
    """Else every process that a later test starts has the old names, and is told nothing about it."""
    assert VARIABLE not in os.environ
    assert STARTUP not in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    assert not any(isinstance(finder, CompatFinder) for finder in sys.meta_path)


@pytest.fixture
def installed(tmp_path: Path) -> str:
    """A folder with a pytagi that is installed, on whose import a script fails."""
    package = tmp_path / "installed" / "pytagi"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('the installed one')")
    return str(package.parent)


def test_a_script_and_its_children_find_the_old_names(tmp_path: Path, installed: str) -> None:
    (tmp_path / "script.py").write_text(PARENT)
    done = run("-m", "gridwise_compat", "script.py", "-x", "1", folder=tmp_path, path=installed)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "CUBE -x 1\n"
    assert done.stderr.count("pytagi is Gridwise's; the one at") == 1


def test_an_installed_library_is_used_if_asked_for(installed: str, isolated: pytest.MonkeyPatch, capsys) -> None:
    isolated.syspath_prepend(installed)
    install(prefer_installed=True)
    with pytest.raises(ImportError, match="the installed one"):
        importlib.import_module("pytagi")
    assert importlib.import_module("torchdistx.fake").__name__ == "gridwise.fake"
    assert capsys.readouterr().err == ""


def test_workers_find_them(tmp_path: Path) -> None:
    """Over MPI; tests/compat/test_torchdistx.py starts some over gloo, in `make soak`."""
    (tmp_path / "script.py").write_text(WORKER)
    command = "from gridwise.cli import main; main()"
    done = run("-c", command, "compat", "-n", "2", "--transport", "mpi", "script.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["sum 3", "sum 3"]


def test_an_installed_library_that_was_imported_is_not_mixed_with_these(isolated: pytest.MonkeyPatch) -> None:
    isolated.setitem(sys.modules, "torchdistx", ModuleType("torchdistx"))
    with pytest.raises(GridwiseError, match=r"^compat\.install: torchdistx has been imported already"):
        install()
