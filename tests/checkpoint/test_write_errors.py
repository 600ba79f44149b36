"""A disk that is full or broken, on any worker and any thread: all workers raise, nothing is committed, nothing is left."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import line, split
from crew import crew, crew_errors

from gridwise import checkpoint
from gridwise.checkpoint import disk
from gridwise.errors import CheckpointBusy, CheckpointError, CheckpointWriteFailed
from gridwise.partition import Partition

WORKERS = 3


def state(P: Partition, value: float) -> dict[str, Any]:
    whole = torch.full((60, 50), value)
    return {
        "split": split(whole, line(P, (60, 50)), P.transport.rank),
        "same": {f"t{i}": torch.full((100,), value) for i in range(6)},
        "own": checkpoint.PerWorker(torch.full((3,), P.rank + value)),
        "value": value,
    }


def check_holds(path: Path, value: float) -> None:
    found = checkpoint.load(path)
    assert found["value"] == value
    assert torch.equal(found["split"], torch.full((60, 50), value))
    assert torch.equal(found["same"]["t5"], torch.full((100,), value))
    assert [float(own[0]) for own in found["own"]] == [rank + value for rank in range(WORKERS)]


def nothing_is_left(path: Path) -> None:
    names = sorted(item.name.split("-")[0] for item in path.iterdir())
    assert names == [".lock", "data", "manifest.json"]


def saves(path: Path, value: float) -> Callable[[Partition], None]:
    return lambda P: checkpoint.save(path, state(P, value), P)


def saves_in_background(path: Path, value: float) -> Callable[[Partition], None]:
    def body(P: Partition) -> None:
        pending = checkpoint.async_save(path, state(P, value), P)
        assert pending is not None
        pending.wait()

    return body


def saves_then_calls_again(path: Path, value: float) -> Callable[[Partition], None]:
    def body(P: Partition) -> None:
        checkpoint.async_save(path, state(P, value), P)
        checkpoint.save(path.with_name("another"), state(P, value), P)

    return body


WAYS = [saves, saves_in_background, saves_then_calls_again]


class Fault:
    """An operation of `disk` that fails where the path contains a word."""

    def __init__(self, operation: str, word: str, code: int) -> None:
        self.real = getattr(disk, operation)
        self.word, self.code = word, code
        self.happened = 0

    def __call__(self, where: Any, *args: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else str(where)
        if self.word in path:
            self.happened += 1
            raise OSError(self.code, os.strerror(self.code), path)
        return self.real(where, *args)


FAULTS = [
    *[(operation, f"w{worker}.safetensors") for operation in ("create", "write", "sync") for worker in range(WORKERS)],
    ("make_folder", "data-"),
    ("sync_folder", "data-"),
    ("create", ".tmp"),
    ("write", ".tmp"),
    ("sync", ".tmp"),
    ("rename", ".tmp"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("operation", "word"), FAULTS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_fault_anywhere_is_raised_everywhere_and_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Any, operation: str, word: str, code: int
) -> None:
    path = tmp_path / "c"
    crew(WORKERS, saves(path, 1.0))
    before = sorted(item.name for item in path.iterdir())
    fault = Fault(operation, word, code)
    with monkeypatch.context() as patch:
        patch.setattr(disk, operation, fault)
        errors = crew_errors(WORKERS, way(path, 2.0))
    assert fault.happened
    assert {type(error) for error in errors} == {CheckpointWriteFailed}, errors
    assert len({str(error) for error in errors}) == 1
    assert os.strerror(code) in str(errors[0])
    assert "nothing was committed" in str(errors[0])
    assert sorted(item.name for item in path.iterdir()) == before
    check_holds(path, 1.0)
    crew(WORKERS, way(path, 3.0))
    check_holds(path, 3.0)
    nothing_is_left(path)


@pytest.mark.parametrize("way", [saves, saves_in_background])
def test_a_failed_first_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Any) -> None:
    monkeypatch.setattr(disk, "sync", Fault("sync", "w1.safetensors", errno.EIO))
    errors = crew_errors(WORKERS, way(tmp_path / "c", 1.0))
    assert all(isinstance(error, CheckpointWriteFailed) for error in errors)
    assert not (tmp_path / "c").exists()


def test_after_the_rename_a_failed_sync_keeps_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the rename survives a loss of power is not known then: the data of both must stay."""
    path = tmp_path / "c"
    crew(WORKERS, saves(path, 1.0))
    real, calls = disk.sync_folder, []

    def sync_folder(folder: Path) -> None:
        calls.append(folder)
        if calls.count(path) == 2:
            raise OSError(errno.EIO, "Input/output error")
        real(folder)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync_folder", sync_folder)
        errors = crew_errors(WORKERS, saves(path, 2.0))
    assert all(isinstance(error, CheckpointWriteFailed) for error in errors)
    assert "in place and whole" in str(errors[0])
    assert len(list(path.glob("data-*"))) == 2
    check_holds(path, 2.0)
    crew(WORKERS, saves(path, 3.0))
    nothing_is_left(path)


@pytest.mark.parametrize("way", WAYS)
def test_a_limit_of_the_kernel_in_the_middle_of_a_file(tmp_path: Path, way: Any) -> None:
    """No injection: the kernel itself cuts a write short and then refuses (EFBIG), as a full disk would."""
    path = tmp_path / "c"
    crew(WORKERS, saves(path, 1.0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        errors = crew_errors(WORKERS, way(path, 2.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {type(error) for error in errors} == {CheckpointWriteFailed}
    check_holds(path, 1.0)
    nothing_is_left(path)


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not can_mount(), reason="a file system of 1 MiB can only be mounted with user namespaces")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import subprocess, torch
        from gridwise import checkpoint
        from gridwise.errors import CheckpointWriteFailed
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"], check=True)
        checkpoint.save("/mnt/c", {"x": torch.ones(50_000)})
        for attempt in range(3):
            try:
                checkpoint.save("/mnt/c", {"x": torch.zeros(300_000)})
            except CheckpointWriteFailed as error:
                assert "No space left" in str(error), error
            else:
                raise AssertionError("it fitted")
            assert torch.equal(checkpoint.load("/mnt/c")["x"], torch.ones(50_000))
        checkpoint.save("/mnt/c", {"x": torch.zeros(50_000)})
        checkpoint.verify("/mnt/c")
    """)
    subprocess.run(["unshare", "-rm", sys.executable, "-c", program], check=True, timeout=120)


def test_a_second_writer_is_refused_on_all_workers(tmp_path: Path) -> None:
    path = tmp_path / "c"
    crew(WORKERS, saves(path, 1.0))
    with closing(disk.Lock(path)):
        errors = crew_errors(WORKERS, saves(path, 2.0))
    assert {type(error) for error in errors} == {CheckpointBusy}
    assert len({str(error) for error in errors}) == 1
    check_holds(path, 1.0)
    crew(WORKERS, saves(path, 2.0))
    check_holds(path, 2.0)


def test_two_jobs_at_once_leave_one_whole_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "c"
    outcomes: list[list[Exception | None]] = []
    jobs = [
        threading.Thread(
            target=lambda v=value: outcomes.append(crew_errors(2, lambda P: checkpoint.save(path, {"v": v}, P)))
        )
        for value in range(6)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert any(errors == [None, None] for errors in outcomes)
    assert all(errors == [None, None] or {type(e) for e in errors} == {CheckpointBusy} for errors in outcomes)
    assert checkpoint.load(path)["v"] in range(6)


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("mine")
    with pytest.raises(CheckpointError, match="is a file"):
        checkpoint.save(tmp_path / "c", {"x": 1})
    assert (tmp_path / "c").read_text() == "mine"


def test_files_of_others_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "notes.txt").write_text("mine")
    (tmp_path / "c" / "data-of-mine").mkdir()
    for value in range(3):
        checkpoint.save(tmp_path / "c", {"x": value})
    assert (tmp_path / "c" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "c" / "data-of-mine").is_dir()


def test_a_damaged_checkpoint_can_be_replaced(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", {"x": 1})
    (tmp_path / "c" / "manifest.json").write_text("{")
    checkpoint.save(tmp_path / "c", {"x": torch.ones(2)})
    assert torch.equal(checkpoint.load(tmp_path / "c")["x"], torch.ones(2))


def test_a_reader_is_not_disturbed_by_a_save_that_replaces_what_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, {"x": torch.zeros(2000)})
    stop = threading.Event()
    problems: list[BaseException] = []

    def reads() -> None:
        try:
            while not stop.is_set():
                x = crew(1, lambda P: checkpoint.load(path, P=P))[0]["x"]
                assert len(set(x.tolist())) == 1
        except BaseException as error:
            problems.append(error)

    reader = threading.Thread(target=reads)
    reader.start()
    for value in range(60):
        checkpoint.save(path, {"x": torch.full((2000,), float(value))})
    stop.set()
    reader.join()
    assert not problems


@pytest.fixture(autouse=True)
def _no_save_in_flight() -> Iterator[None]:
    yield
    from gridwise.checkpoint.consensus import in_flight

    in_flight.clear()
