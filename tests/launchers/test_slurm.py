"""Slurm on one machine: slurmctld, slurmd and munge, started here; srun with PMI-2, with PMIx, and with torchrun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchers import JOB, check_death, check_run, run, torchrun

pytestmark = pytest.mark.launchers

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "scancel")

CONFIG = """
ClusterName=test
SlurmctldHost=localhost
SlurmUser=root
SlurmctldPort={port}
SlurmdPort={next_port}
AuthType=auth/munge
AuthInfo=socket={home}/munge.sock
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MailProg=/bin/true
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A running Slurm; the environment in which srun finds it."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin") is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: tests/launchers/install.sh installs them")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons are started by root")
    home = tmp_path_factory.mktemp("slurm")
    for folder in ("state", "spool"):
        (home / folder).mkdir()
    key = home / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    config = home / "slurm.conf"
    port = 20000 + os.getpid() % 20000
    config.write_text(CONFIG.format(home=home, port=port, next_port=port + 1))
    environment = {"SLURM_CONF": str(config), "PATH": os.environ["PATH"] + ":/usr/sbin"}
    files = ["key-file=munge.key", "socket=munge.sock", "pid-file=munged.pid", "log-file=munged.log", "seed-file=seed"]
    munged = ["munged", "--force", "--foreground"]
    munged += [f"--{name}={home / file}" for name, file in (pair.split("=") for pair in files)]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in (
            munged,
            ["slurmctld", "-D", "-f", str(config)],
            ["slurmd", "-D", "-N", "localhost", "-f", str(config)],
        ):
            with (home / f"{command[0]}.out").open("wb") as log:
                daemons.append(
                    subprocess.Popen(
                        command, env=os.environ | environment, stdout=log, stderr=log, start_new_session=True
                    )
                )
            time.sleep(1.0)
        _wait_until_idle(environment, home)
        yield environment
    finally:
        subprocess.run(["scancel", "--quiet", "--user", "root"], env=os.environ | environment, capture_output=True)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _wait_until_idle(environment: dict[str, str], home: Path) -> None:
    for _ in range(60):
        found = subprocess.run(["sinfo", "-h"], env=os.environ | environment, capture_output=True, text=True)
        if "idle" in found.stdout:
            return
        time.sleep(1.0)
    pytest.fail(f"Slurm does not start: {(home / 'slurmctld.log').read_text()[-2000:]}")


def srun(*options: str) -> list[str]:
    return ["srun", "--kill-on-bad-exit=0", *options]


def plugins(environment: dict[str, str]) -> str:
    listed = subprocess.run(["srun", "--mpi=list"], env=os.environ | environment, capture_output=True, text=True)
    return listed.stdout + listed.stderr


@pytest.mark.parametrize("victim", [None, 1], ids=["run", "death"])
def test_srun_with_pmi2(slurm: dict[str, str], victim: int | None) -> None:
    if "pmi2" not in plugins(slurm):
        pytest.skip("this Slurm has no plug-in for PMI-2")
    words = [] if victim is None else [str(victim)]
    done = run(srun("-n", "3", "--mpi=pmi2", sys.executable, JOB, *words), slurm)
    if victim is None:
        check_run(done, "mpi", 3)
    else:
        check_death(done, "mpi", 3, victim)


@pytest.mark.parametrize("victim", [None, 1], ids=["run", "death"])
def test_srun_with_pmix(slurm: dict[str, str], open_mpi: str, victim: int | None) -> None:
    if "pmix" not in plugins(slurm):
        pytest.skip("this Slurm has no plug-in for PMIx")
    words = [] if victim is None else [str(victim)]
    done = run(srun("-n", "3", "--mpi=pmix", open_mpi, JOB, *words), slurm)
    if victim is None:
        check_run(done, "mpi", 3)
    else:
        check_death(done, "mpi", 3, victim)


@pytest.mark.parametrize("victim", [None, 1], ids=["run", "death"])
def test_srun_torchrun(slurm: dict[str, str], victim: int | None) -> None:
    words = [] if victim is None else [str(victim)]
    command = torchrun("--standalone", "--nproc-per-node", "3", JOB, *words)
    done = run(srun("-N", "1", "--ntasks-per-node=1", *command), slurm)
    if victim is None:
        check_run(done, "gloo", 3)
    else:
        check_death(done, "gloo", 3, victim)


def test_a_bare_srun_is_explained(slurm: dict[str, str]) -> None:
    done = run(srun("-n", "2", "--mpi=none", sys.executable, JOB), slurm)
    assert done.status != 0
    assert "srun --mpi=pmi2" in done.text
