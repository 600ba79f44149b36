"""Workers that are killed, fail, leave early or never come: the others are told who, soon, on both transports."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gridwise
from gridwise.cli.run import command_for
from gridwise.comm.launching.start import clean, environment_for, mpi_missing, mpiexec_command
from gridwise.comm.supervision import watch
from gridwise.testing import workers

FAULTS = Path(__file__).with_name("faults.py")
Events = list[list[dict[str, Any]]]
needs_mpi = pytest.mark.skipif(mpi_missing() is not None, reason=str(mpi_missing()))


@pytest.fixture(scope="module")
def printed_over_gloo() -> Iterator[Callable[..., list[str]]]:
    """Run a scenario of faults.py on three workers over gloo, and return what each of them printed."""
    process = subprocess.Popen(
        [sys.executable, str(FAULTS), "zygote"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment_for(3, "gloo"),
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def run(name: str, **environment: str) -> list[str]:
        process.stdin.write(json.dumps({"name": name, "environment": environment}) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield run
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


@pytest.fixture
def over_gloo(printed_over_gloo: Callable[..., list[str]]) -> Callable[..., Events]:
    """As `printed_over_gloo`, but what each of them said."""
    return lambda name, **environment: [events(text) for text in printed_over_gloo(name, **environment)]


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"kind"')]


def over_mpi(name: str, workers: int = 3, **environment: str) -> tuple[int, str, float]:
    """The exit status, the output and the seconds of a scenario under plain mpiexec."""
    began = time.monotonic()
    done = subprocess.run(
        [*mpiexec_command(workers), sys.executable, str(FAULTS), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        env={**environment_for(workers, "mpi"), **environment},
    )
    return done.returncode, done.stdout, time.monotonic() - began


@pytest.mark.parametrize(
    ("name", "victim"),
    [
        ("collective", 2),
        ("big_collective", 1),
        ("exchange", 2),
        ("agreement", 2),
        ("large_message", 2),
        ("large_sum", 2),
        ("chain", 2),
        ("long_computation", 0),
        ("new_group", 1),
        ("forked_child", 2),
    ],
)
def test_survivors_of_a_kill_name_the_dead_within_seconds(
    over_gloo: Callable[..., Events], name: str, victim: int
) -> None:
    said = over_gloo(name)
    assert [event["kind"] for event in said[victim]] == ["gone"]
    for rank in {0, 1, 2} - {victim}:
        (raised,) = said[rank]
        assert raised["error"] == "WorkerDied"
        assert raised["workers"] == [victim]
        assert f"worker {victim} of 3" in raised["text"]
        assert f"while worker {rank} of 3 waited for" in raised["text"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("name", ["device_messages", "device_sums", "small_device_sums"])
def test_survivors_of_a_kill_on_a_device_name_the_dead(over_gloo: Callable[..., Events], name: str) -> None:
    test_survivors_of_a_kill_name_the_dead_within_seconds(over_gloo, name, 2)


@pytest.mark.parametrize("name", ["exception", "amid_sums", "amid_exchanges", "amid_large_exchanges"])
def test_an_exception_is_named_by_those_who_waited(over_gloo: Callable[..., Events], name: str) -> None:
    said = over_gloo(name)
    for rank in (0, 2):
        assert said[rank][0]["workers"] == [1]
        assert "worker 1 of 3 failed: ValueError: the pressure is negative" in said[rank][0]["text"]


def test_a_sum_that_gloo_has_lost_is_given_up(over_gloo: Callable[..., Events]) -> None:
    said = over_gloo("lost_sum")
    assert said[0][0]["kind"] == "raised"
    assert said[0][0]["workers"] == [2]


@pytest.mark.parametrize("name", ["lost_message", "amid_a_large_message"])
def test_a_worker_whose_message_gloo_has_lost_says_why_and_ends(
    printed_over_gloo: Callable[..., list[str]], name: str
) -> None:
    printed = printed_over_gloo(name)[0]
    assert "hung" not in printed
    assert "WorkerDied" in printed
    assert "worker 2 of 3" in printed
    assert "while worker 0 of 3 waited for HaloExchange" in printed


@pytest.mark.parametrize(("name", "leaver"), [("early_exit", 1), ("early_exit_of_worker_0", 0)])
def test_a_worker_that_leaves_early_is_named(over_gloo: Callable[..., Events], name: str, leaver: int) -> None:
    said = over_gloo(name)
    for rank in {0, 1, 2} - {leaver}:
        assert said[rank][0]["error"] == "WorkerDied"
        assert f"worker {leaver} of 3 has finished" in said[rank][0]["text"]
        assert "fix: let every worker call the same operators" in said[rank][0]["text"]


def test_a_timeout_names_the_operator_and_the_missing_worker(over_gloo: Callable[..., Events]) -> None:
    said = over_gloo("missing", GRIDWISE_TIMEOUT="2")
    for rank in (0, 2):
        assert said[rank][0]["error"] == "CommTimeout"
        assert "for AllSumReduce with workers (0, 1, 2)" in said[rank][0]["text"]
        assert "worker 1 is not there" in said[rank][0]["text"]
        assert f"worker {2 - rank} " not in said[rank][0]["text"].splitlines()[1]


def test_a_timeout_tells_who_waits_for_something_else(over_gloo: Callable[..., Events]) -> None:
    said = over_gloo("different_operators", GRIDWISE_TIMEOUT="2")
    texts = " ".join(one[0]["text"] for one in said)
    assert {one[0]["error"] for one in said} == {"CommTimeout"}
    assert "HaloExchange" in texts
    assert "AllSumReduce" in texts


def test_the_watch_is_missed_loudly_and_waits_end_without_it(printed_over_gloo: Callable[..., list[str]]) -> None:
    printed = printed_over_gloo("hub_dies", GRIDWISE_TIMEOUT="2")
    for text in printed:
        assert "the watch over the workers has ended before they have" in text
    for rank in (0, 2):
        (raised,) = events(printed[rank])
        assert raised["error"] == "CommTimeout"
        assert f"worker {rank} of 3 has waited" in raised["text"]


@workers(2)
def test_a_watch_that_cannot_start_is_a_warning_on_all_workers(monkeypatch):
    transport, warnings = gridwise.world().transport, []

    def fails(hosts):
        raise OSError("no address can be bound")

    if transport.rank == 0:
        monkeypatch.setattr(watch.network_addresses, "listen", fails)
    monkeypatch.setattr(watch.logger, "warning", lambda text, *values: warnings.append(text % values))
    assert watch.watch(transport) is None
    (said,) = warnings
    assert "the watch beside worker 0 cannot be started" in said
    assert "no address can be bound" in said


@workers(2)
def test_a_watch_that_is_off_on_one_worker_is_off_on_all(monkeypatch):
    transport = gridwise.world().transport
    if transport.rank == 0:
        monkeypatch.setenv("GRIDWISE_WATCH", "off")
    assert watch.watch(transport) is None


def test_nothing_is_said_when_all_is_well(over_gloo: Callable[..., Events]) -> None:
    assert [[event["kind"] for event in one] for one in over_gloo("nothing")] == [["done"]] * 3


def test_a_worker_that_is_stopped_is_waited_for(over_gloo: Callable[..., Events]) -> None:
    assert [[event["kind"] for event in one] for one in over_gloo("stopped")] == [["done"]] * 3


def test_a_worker_that_has_sent_its_message_may_leave(over_gloo: Callable[..., Events]) -> None:
    assert [[event["kind"] for event in one] for one in over_gloo("sent_and_left")] == [["done"]] * 3


def test_sums_that_end_at_exit_do_not_bring_the_process_down(over_gloo: Callable[..., Events]) -> None:
    """A thread of gloo that lets go of a tensor while Python ends aborts the process, or hangs it."""
    for _ in range(3):
        said = over_gloo("sum_that_ends_at_exit")
        assert [[event["kind"] for event in one] for one in said] == [["done"]] * 3


def test_the_watch_closes_its_socket_with_the_transport(over_gloo: Callable[..., Events]) -> None:
    assert [one[0]["descriptor"] for one in over_gloo("closed")] == [-1] * 3


@needs_mpi
def test_an_exception_after_a_transport_was_closed_and_made_anew_ends_the_job() -> None:
    code, output, _ = over_mpi("exception_in_a_second_world")
    assert code != 0
    assert output.count("Traceback") == 1
    assert "ValueError: the pressure is negative" in output


@needs_mpi
@pytest.mark.parametrize(
    ("name", "victim"),
    [
        ("collective", 2),
        ("large_message", 2),
        pytest.param("long_computation", 0, marks=pytest.mark.soak),
        pytest.param("large_sum", 2, marks=pytest.mark.soak),
    ],
)
def test_a_kill_under_mpiexec_ends_the_job_with_a_message(name: str, victim: int) -> None:
    code, output, _ = over_mpi(name)
    assert code != 0
    assert output.count("gridwise: worker") == 1
    assert f"gridwise: worker {victim} of 3" in output


@needs_mpi
def test_a_worker_that_is_stopped_under_mpiexec_is_waited_for() -> None:
    code, output, _ = over_mpi("stopped")
    assert code == 0
    assert [event["kind"] for event in events(output)] == ["done"] * 3


@pytest.mark.parametrize(
    "name", ["collective", *(pytest.param(name, marks=pytest.mark.soak) for name in ("large_message", "agreement"))]
)
def test_a_kill_under_torchrun_ends_the_job_with_the_name_of_the_dead(name: str) -> None:
    command = command_for("gloo", 3, [str(FAULTS), name])
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment_for(3, "gloo"))
    assert done.returncode != 0
    said = events(done.stdout)
    assert "gridwise: worker 2 was the first to end, with signal 9 (SIGKILL)" in done.stderr
    assert len(done.stderr.splitlines()) <= 5, done.stderr
    assert [event for event in said if event["kind"] == "done"] == []
    assert all(event["workers"] == [2] for event in said if event["kind"] == "raised")


@needs_mpi
def test_an_exception_under_mpiexec_ends_the_job_with_its_traceback_first() -> None:
    code, output, _ = over_mpi("exception")
    assert code != 0
    errors = [line for line in output.splitlines() if not line.startswith('{"kind"')]
    assert errors[0].startswith("Traceback")
    assert "ValueError: the pressure is negative" in output


@needs_mpi
def test_an_early_exit_under_mpiexec_ends_the_job_with_a_message() -> None:
    code, output, _ = over_mpi("early_exit")
    assert code != 0
    assert "gridwise: worker 1 of 3 has finished, but worker" in output
    assert "fix: let every worker call the same operators" in output


@needs_mpi
def test_a_timeout_under_mpiexec_names_the_missing_worker() -> None:
    code, output, _ = over_mpi("missing", GRIDWISE_TIMEOUT="2")
    assert code != 0
    assert "worker 1 is not there" in output
    assert "AllSumReduce" in output


UNDER_PYTEST = """
import time, gridwise
def test_one_never_comes():
    if gridwise.world().rank == 0:
        gridwise.world().barrier()
    time.sleep(60)
"""


@needs_mpi
def test_a_timeout_is_told_though_pytest_captures_what_is_printed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(UNDER_PYTEST)
    done = subprocess.run(
        [
            *mpiexec_command(2),
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(tmp_path / "test_it.py"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env={**environment_for(2, "mpi"), "GRIDWISE_TIMEOUT": "3"},
    )
    assert done.returncode != 0
    assert "gridwise: worker 0 of 2 has waited" in done.stdout
    assert "worker 1 is not there" in done.stdout


def test_an_exception_under_torchrun_ends_the_job() -> None:
    command = command_for("gloo", 2, [str(FAULTS), "exception"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment_for(2, "gloo"))
    assert done.returncode != 0
    assert done.stderr.count("ValueError: the pressure is negative") in (1, 2)  # told by the other, if it still could
    assert done.stderr.count("Traceback (most recent call last)") == 1, done.stderr


@needs_mpi
def test_mpiexec_without_mpi4py_is_an_error_not_solo_workers(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise ImportError('hidden')")
    environment = environment_for(2, "mpi")
    del environment["GRIDWISE_TRANSPORT"]
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    done = subprocess.run(
        [*mpiexec_command(2), sys.executable, str(FAULTS), "nothing"],
        capture_output=True,
        text=True,
        timeout=200,
        env=clean(environment),
    )
    assert done.returncode != 0
    assert "TransportError: this process was started as one of 2 MPI processes, but MPI does not work" in done.stderr
    assert '"done"' not in done.stdout
