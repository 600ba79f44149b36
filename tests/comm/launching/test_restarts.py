"""A job that starts again after a death: on the next grid, from its newest checkpoint, with the losses of a quiet run."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from processes import TRANSPORTS, check_gone
from restarting import GRIDWISE, TORCHRUN, kill, losses_of, processes_with, running, script_of, started
from typer.testing import CliRunner

from gridwise.cli import app
from gridwise.comm.launching.restarts import Start, run_with_restarts

SOAK_SECONDS = float(os.environ.get("GRIDWISE_RESTART_SOAK", "300"))
ON_TWO = "P_x.size == 2 and P_x.rank == 1 and step == 3"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    job = started([sys.executable], script_of(tmp_path_factory.mktemp("alone")), GRIDWISE_GRID="1x1x1x1")
    said, complaints = job.communicate(timeout=200)
    assert job.returncode == 0, complaints
    assert len(losses_of(said)) == 6
    return losses_of(said)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_it_goes_on_where_it_was_on_the_next_grid(transport: str, undisturbed: list[float], tmp_path: Path) -> None:
    script = script_of(tmp_path / "job", deaths=ON_TWO)
    options = ["--restarts", "2", "--grids", "1x1x2x1,1x1x1x1", "--transport", transport]
    job = started([*GRIDWISE, *options], script)
    said, complaints = job.communicate(timeout=250)
    assert job.returncode == 0, complaints
    assert losses_of(said) == pytest.approx(undisturbed, rel=1e-5)
    ours = [line for line in complaints.splitlines() if line.startswith("gridwise run: ")]
    assert ours[0].startswith("gridwise run: the job on 2 workers (1x1x2x1) ended with ")
    assert ours[1:] == ["gridwise run: restart 1 of 2, on 1 worker (1x1x1x1)."]


def test_torchrun_starts_again_by_itself(undisturbed: list[float], tmp_path: Path) -> None:
    deaths = "P_x.rank == 1 and step == 3 and __import__('os').environ['TORCHELASTIC_RESTART_COUNT'] == '0'"
    script = script_of(tmp_path / "job", deaths=deaths)
    options = ["--nproc-per-node", "2", "--max-restarts", "1"]
    job = started([*TORCHRUN, *options], script, GRIDWISE_GRID="1x1x2x2,1x1x1x2")
    said, complaints = job.communicate(timeout=250)
    assert job.returncode == 0, complaints
    assert "SIGKILL" in complaints or "exitcode: -9" in complaints
    assert losses_of(said) == pytest.approx(undisturbed, rel=1e-5)


@pytest.mark.soak
def test_two_launchers_start_again_together(undisturbed: list[float], tmp_path: Path) -> None:
    """As on two machines: each launcher counts its own restarts, and both keep one store."""
    died = "__import__('pathlib').Path('died')"
    deaths = f"P_x.rank == 1 and step == 3 and not {died}.exists() and ({died}.touch() or True)"
    script = script_of(tmp_path / "job", deaths=deaths)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        meet = f"127.0.0.1:{door.getsockname()[1]}"
    options = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--max-restarts",
        "3",
        "--rdzv-backend",
        "c10d",
        "--rdzv-id",
        "x",
    ]
    command = [sys.executable, "-m", "torch.distributed.run", *options, "--rdzv-endpoint", meet]
    jobs = [started(command, script, GRIDWISE_GRID="1x1x2x1") for _ in range(2)]
    said = [job.communicate(timeout=250) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    assert losses_of(said[0][0] + said[1][0]) == pytest.approx(undisturbed, rel=1e-5)
    assert (script.parent / "died").exists()


# Without workers: what is started, how often, and what ends it for good


def start(code: str, on: str = "1 worker") -> Start:
    return Start([sys.executable, "-c", code], dict(os.environ), on)


def test_restarts_are_counted_and_the_last_grid_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    starts = [start(f"open({str(log)!r}, 'a').write({name!r}); raise SystemExit(7)", name) for name in "abc"]
    assert run_with_restarts(starts, 4, patience=1) == 7
    assert log.read_text() == "abccc"
    assert "restart 4 of 4, on c." in capfd.readouterr().err
    assert run_with_restarts([start("import os; os.kill(os.getpid(), 9)")], 0, patience=1) == 137
    assert run_with_restarts([start("")], 3, patience=1) == 0


def test_what_the_last_start_has_left_is_gone_before_the_next(tmp_path: Path) -> None:
    """A child that its parent left behind would write to the same files."""
    code = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
if os.path.exists({str(tmp_path / "pid")!r}):
    before = int(open({str(tmp_path / "pid")!r}).read())
    gone = not os.path.exists(f"/proc/{{before}}") or " Z " in open(f"/proc/{{before}}/stat").read()
    child.kill()
    sys.exit(0 if gone else 3)
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
sys.exit(1)
"""
    assert run_with_restarts([start(code)], 1, patience=1) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_user_ends_it_for_good(number: signal.Signals, tmp_path: Path) -> None:
    script, token = script_of(tmp_path / "job", steps=10_000, pause=0.2), uuid.uuid4().hex
    command = [*GRIDWISE, "-n", "1", "--grids", "1x1x1x1", "--restarts", "5", "--transport", "gloo"]
    job = started(command, script, RESTARTS_OF=token)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("job/run/step-*/manifest.json")):
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    pids = processes_with(f"RESTARTS_OF={token}")
    assert len(pids) >= 3
    job.send_signal(number)
    _, complaints = job.communicate(timeout=60)
    assert job.returncode == 128 + number
    assert "restart 1" not in complaints
    check_gone(pids)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grids", "1x1x2,2"], "`--grids` (='1x1x2,2') is no grid as 1x1x2x2, nor a list"),
        (["--grids", "1,1,2,2"], "is no grid"),
        (["--grids", "1x2", "-n", "4"], "`-n` (=4) workers cannot be on the first of `--grids` (='1x2')"),
        (["--grids", "1x2", "--nodes", "2"], "torchrun's own --max-restarts"),
        (["--restarts", "2", "--nodes", "2"], "torchrun's own --max-restarts"),
        (["--restarts", "2", "--transport", "pigeon"], "'pigeon'"),
    ],
)
def test_what_is_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["run", *arguments, __file__])
    assert done.exit_code == 2
    assert words in done.output


# Workers and launchers die at any moment

GRIDS = ("1x1x2x2", "1x1x1x1", "1x1x2x1", "2x1x1x1", "1x1x1x2", "2x1x2x1")


def waited(job: subprocess.Popen[str], random_: random.Random, series: Path) -> bool:
    """Wait for some steps more, or for some seconds, in which the job may just be starting; False if it has ended."""

    def steps() -> int:
        return max((int(path.parent.name[5:]) for path in series.glob("step-*/manifest.json")), default=0)

    until = time.monotonic() + random_.uniform(0.5, 10)
    enough = steps() + random_.randint(1, 12) if random_.random() < 0.7 else None
    while job.poll() is None:
        if steps() >= enough if enough is not None else time.monotonic() > until:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.soak
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_deaths_at_random_change_no_loss(transport: str, tmp_path: Path) -> None:
    steps, random_, kills = 60, random.Random(0), 0
    alone = started([sys.executable], script_of(tmp_path / "alone", steps), GRIDWISE_GRID="1x1x1x1")
    expected = losses_of(alone.communicate(timeout=300)[0])
    deadline, number = time.monotonic() + SOAK_SECONDS, 0
    while time.monotonic() < deadline:
        number += 1
        grids = ",".join(random_.choices(GRIDS, k=200))
        script, token = script_of(tmp_path / f"job{number}", steps, pause=0.1), f"RESTARTS_OF={uuid.uuid4().hex}"
        options = ["--restarts", "1000", "--grids", grids, "--transport", transport]
        log = tmp_path / f"log{number}"  # a pipe that nobody reads would fill up
        with log.open("w") as out:
            job = started([*GRIDWISE, *options], script, out, **dict([token.split("=")]))
            while time.monotonic() < deadline and waited(job, random_, script.parent / "run"):
                pids = [pid for pid in processes_with(token) if pid != job.pid and running(pid, script)]
                for pid in random_.sample(pids, min(len(pids), random_.choice((1, 1, 1, 2)))):
                    kill(pid)
                    kills += 1
            job.wait(timeout=600)
        assert job.returncode == 0, log.read_text()[-5000:]
        assert losses_of(log.read_text()) == pytest.approx(expected, rel=1e-4)
        assert processes_with(token) == []
    print(f"{kills} processes were killed in {number} runs over {transport}")
    assert kills >= 3
