"""Command lines for a cluster: what is printed, and that nothing is started."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gridwise.cli import app
from gridwise.comm.launching import cluster
from gridwise.comm.launching.cluster import Cluster, cluster_of, lines_for
from gridwise.errors import PartitionError

SCRIPT = ["train.py", "--name", "two words"]


def command(cluster_: Cluster, remark: str, transport: str = "auto") -> list[str]:
    (line,) = [line for line in lines_for(cluster_, transport, SCRIPT) if line.remark == remark]
    return shlex.split(line.command)


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.setattr(cluster, "mpi_family", lambda: request.param)
    monkeypatch.setattr(cluster, "mpiexec", lambda: None)
    return request.param


@pytest.mark.parametrize("family", ["mpich"], indirect=True)
def test_lines_of_mpich(family: str) -> None:
    named, counted = cluster_of("a,b", 8), cluster_of("2", 8)
    python = [sys.executable, *SCRIPT]
    assert command(named, "MPICH's launcher") == ["mpiexec", "-hosts", "a,b", "-ppn", "4", "-n", "8", *python]
    assert command(counted, "MPICH's launcher") == ["mpiexec", "-f", "HOSTFILE", "-ppn", "4", "-n", "8", *python]
    slurm = ["srun", "--nodes", "2", "--ntasks-per-node", "4", "--mpi=pmi2", *python]
    assert command(counted, "Slurm, with MPICH", "mpi") == slurm
    assert not [line for line in lines_for(counted, "gloo", SCRIPT) if "MPICH" in line.remark]


@pytest.mark.parametrize("family", ["openmpi"], indirect=True)
def test_lines_of_open_mpi(family: str) -> None:
    named = cluster_of("a,b", 8)
    python = [sys.executable, *SCRIPT]
    launcher = ["mpirun", "--host", "a:4,b:4", "--map-by", "ppr:4:node", "-n", "8", *python]
    assert command(named, "Open MPI's launcher") == launcher
    assert "--mpi=pmix" in command(named, "Slurm, with Open MPI")


@pytest.mark.parametrize("family", [None], indirect=True)
def test_without_mpi_there_are_torchruns_lines(family: None) -> None:
    lines = lines_for(cluster_of("a,b", 8), "auto", SCRIPT)
    assert [line.remark for line in lines[:3]] == ["torchrun, on a", "torchrun, on b", "Slurm, with torchrun"]
    assert lines[3].command == ""
    start = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "4", "--node-rank"]
    meet = ["--master-addr", "a", "--master-port", "29500", *SCRIPT]
    assert shlex.split(lines[1].command) == [*start, "1", *meet]
    assert "--rdzv-backend c10d" in lines[2].command
    assert "--nodelist a,b --ntasks-per-node 1" in lines[2].command


@pytest.mark.parametrize(
    ("nodes", "workers", "words"),
    [("3", 4, "-n 3"), ("0", 4, "'0'"), ("a,,b", 4, "'a,,b'"), ("a,a", 4, "'a,a'"), ("a;rm", 4, "'a;rm'")],
)
def test_clusters_that_are_none(nodes: str, workers: int, words: str) -> None:
    with pytest.raises(PartitionError, match=words):
        cluster_of(nodes, workers)


def test_run_prints_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('started')")
    monkeypatch.setattr(cluster, "mpi_family", lambda: "mpich")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("something was started"))
    done = CliRunner().invoke(app, ["run", "--nodes", "2", "-n", "6", str(script), "--nodes", "9"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("# 6 workers, 3 on each of 2 machines. Nothing was started.\n")
    assert done.output.count(f"{script} --nodes 9\n") == 4
    refused = CliRunner().invoke(app, ["run", "--nodes", "4", "-n", "6", str(script)])
    assert refused.exit_code == 2
    assert "cannot be shared out evenly" in refused.output
