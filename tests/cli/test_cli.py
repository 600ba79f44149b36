"""The command line: what it would start, what it starts, and a doctor that never faints."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import gridwise
from gridwise.cli import app, doctor
from gridwise.cli.run import command_for
from gridwise.comm.launching.cores import cores
from gridwise.comm.launching.start import choose, clean, environment_for, mpi_missing, mpiexec

SCRIPT = """
import sys
from gridwise.comm.launching import find
transport = find.current()
transport.barrier()
line = " ".join([transport.name, str(transport.rank), str(transport.size), *sys.argv[1:]])
sys.stdout.write(line + "\\n")  # in one piece: two workers write to one pipe
sys.stdout.flush()
"""
needs_mpi = pytest.mark.skipif(mpi_missing() is not None, reason=str(mpi_missing()))


@pytest.mark.parametrize("transport", [pytest.param("mpi", marks=needs_mpi), "gloo"])
def test_run_gives_every_worker_the_script_and_its_arguments(transport: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-c", "from gridwise.cli import main; main()"]
    done = subprocess.run(
        [*command, "run", "-n", "2", "--transport", transport, str(script), "--rate", "3", "-n", "9"],
        capture_output=True,
        text=True,
        timeout=250,
        env=environment_for(2, "auto"),
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", f"{transport} 0 2 --rate 3 -n 9", f"{transport} 1 2 --rate 3 -n 9"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--transport", "pigeon", __file__], "'pigeon'"),
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["--worker", "3", __file__], "there is no option '--worker'"),
    ],
)
def test_run_refuses_what_it_cannot_do(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["run", *arguments])
    assert done.exit_code == 2
    assert "gridwise run: " in done.output
    assert words in done.output


def test_commands_are_those_of_mpiexec_and_torchrun() -> None:
    assert command_for("gloo", 3, ["a.py", "x"])[1:] == [
        *["-m", "gridwise.comm.launching.torchrun", "--standalone", "--nproc-per-node", "3"],
        *["a.py", "x"],
    ]
    if mpi_missing() is None:
        assert command_for("mpi", 3, ["a.py"])[:3] == [mpiexec(), "-n", "3"]


def test_auto_is_gloo_when_workers_share_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRIDWISE_TRANSPORT", raising=False)
    assert choose("auto", cores() + 1) == "gloo"
    assert choose("auto", 1) == ("gloo" if mpi_missing() else "mpi")
    monkeypatch.setenv("GRIDWISE_TRANSPORT", "gloo")
    assert choose("auto", 1) == "gloo"


def test_threads_are_shared_out_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment_for(2 * cores(), "gloo")["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert environment_for(2, "gloo")["OMP_NUM_THREADS"] == "7"
    assert clean({"MPIR_CVAR_X": "1", "PMI_FD": "3"}) == {"MPIR_CVAR_X": "1"}


def test_doctor_finds_two_working_transports() -> None:
    done = CliRunner().invoke(app, ["doctor", "--seconds", "200"])
    assert done.exit_code == 0
    assert "FAILED" not in done.output
    assert re.search(
        rf"^torch +{re.escape(torch.__version__)}, (not )?tested with .*2\.11\.0, ", done.output, re.MULTILINE
    )
    assert re.search(r"^recording +models are recorded right", done.output, re.MULTILINE)
    for transport in ["gloo"] if mpi_missing() else ["mpi", "gloo"]:
        (line,) = [line for line in done.output.splitlines() if line.startswith(f"2 workers over {transport}")]
        assert "adjoint test passed" in line
        assert "GB/s" in line
        assert "messages through shared memory" in line
    assert "devices per worker" in done.output
    (line,) = [line for line in done.output.splitlines() if line.startswith("to start a job")]
    assert f"gridwise run -n {torch.cuda.device_count() or cores()} script.py" in line


def test_doctor_says_which_plug_in_slurm_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["gridwise.cli.doctor"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not on PATH" in module.slurm()
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\necho 'srun: no slurm.conf' >&2; exit 1\n")
    srun.chmod(0o755)
    assert "does not work here: srun: no slurm.conf" in module.slurm()
    srun.write_text("#!/bin/sh\necho 'MPI plugin types are... none pmi2'\n")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for family, words in (("mpich", "MPICH needs --mpi=pmi2"), ("openmpi", "--mpi=pmix, which is not there")):
        monkeypatch.setattr(module.start, "mpi_family", lambda family=family: family)
        assert words in module.slurm()
        assert "outside of a job" in module.slurm()
    monkeypatch.setattr(module.start, "mpi_family", lambda: None)
    assert "torchrun" in module.slurm()
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert module.command_to_use().startswith("srun --nodes 2 --ntasks-per-node 1 ")


@pytest.mark.parametrize(("devices", "words"), [(0, "on the CPU"), (1, "share the one"), (4, "i modulo 4")])
def test_doctor_says_what_workers_compute_on(devices: int, words: str) -> None:
    assert words in sys.modules["gridwise.cli.doctor"].devices_per_worker(devices)


def test_doctor_is_calm_without_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI is an extra: nothing has failed where it is not installed."""
    module, find_spec = sys.modules["gridwise.cli.doctor"], importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "mpi4py" else find_spec(name, *rest)
    )
    told = {name: module._tried(probe) for name, probe in module.probes() if "mpi" in name.lower()}
    assert sorted(told) == ["2 workers over mpi", "MPI library", "mpiexec"]
    assert not any("FAILED" in text for text in told.values())
    assert "none is needed" in told["MPI library"]
    assert told["2 workers over mpi"] == "not possible: mpi4py is not installed"


def test_doctor_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()
    probes = [("sky", lambda: str(forever.wait())), ("sea", lambda: "blue")]
    monkeypatch.setattr(sys.modules["gridwise.cli.doctor"], "probes", lambda: iter(probes))
    done = CliRunner().invoke(app, ["doctor", "--seconds", "1"])
    forever.set()
    assert re.search(r"^sky +left out, it takes longer: gridwise doctor --seconds", done.output, re.MULTILINE)
    assert re.search(r"^sea +blue", done.output, re.MULTILINE)


@pytest.mark.parametrize("terminal", [False, True])
def test_doctor_turns_a_failing_probe_into_a_line(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise OSError("no such luck [/mnt]\n  fix: try again")

    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")

    module = sys.modules["gridwise.cli.doctor"]
    monkeypatch.setattr(module, "probes", lambda: iter([("sky", broken), ("sea", lambda: "blue")]))
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    assert "FAILED: OSError: no such luck [/mnt] fix: try again" in done.output
    assert "blue" in done.output
    assert doctor is module.doctor


def test_python_m_gridwise_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gridwise", "--version"])
    monkeypatch.delitem(sys.modules, "gridwise.__main__", raising=False)  # another test may have imported it
    with pytest.raises(SystemExit):
        runpy.run_module("gridwise", run_name="__main__")
    assert capsys.readouterr().out == f"gridwise {gridwise.__version__}\n"


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"gridwise {gridwise.__version__}\n")
