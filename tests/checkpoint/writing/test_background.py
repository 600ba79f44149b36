"""Saving in the background: what is saved is the moment of the call, one at a time, and failures are not lost."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import crew, crew_errors

from gridwise import checkpoint
from gridwise.checkpoint import disk
from gridwise.checkpoint.writing import background, staging
from gridwise.checkpoint.writing.background import Pending
from gridwise.errors import CheckpointBusy, CheckpointMismatch, CheckpointWriteFailed
from gridwise.partition import Partition, world


def test_what_is_saved_is_the_moment_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = threading.Event()
    real = disk.create
    monkeypatch.setattr(disk, "create", lambda path: (hold.wait(20), real(path))[1])
    x = torch.zeros(1000)
    pending = checkpoint.async_save(tmp_path / "c", {"x": x, "turned": x.view(10, 100).t(), "n": [1]})
    assert isinstance(pending, Pending)
    assert not pending.done()
    x.fill_(5.0)
    hold.set()
    pending.wait()
    pending.wait()  # twice is fine
    found = checkpoint.load(tmp_path / "c")
    assert torch.equal(found["x"], torch.zeros(1000))
    assert torch.equal(found["turned"], torch.zeros(100, 10))


def test_the_memory_of_the_copy_is_used_again(tmp_path: Path) -> None:
    state = {"x": torch.ones(5000), "y": torch.ones(3, dtype=torch.int8)}
    transport = world().transport
    checkpoint.async_save(tmp_path / "c", state).wait()
    first = staging._memory[transport].data_ptr()
    checkpoint.async_save(tmp_path / "c", {"x": torch.zeros(100)}).wait()
    checkpoint.async_save(tmp_path / "c", state).wait()
    assert staging._memory[transport].data_ptr() == first
    staging.forget(transport)
    assert transport not in staging._memory


def test_the_memory_of_a_copy_that_is_not_saved_is_kept(tmp_path: Path) -> None:
    state = {"x": torch.ones(5000)}
    transport = world().transport
    checkpoint.async_save(tmp_path / "c", state).wait()
    first = staging._memory[transport].data_ptr()
    with closing(disk.Lock(tmp_path / "c")), pytest.raises(CheckpointBusy):
        checkpoint.async_save(tmp_path / "c", state)
    with pytest.raises(CheckpointMismatch):
        checkpoint.async_save(tmp_path / "c", {**state, "y": object()})
    assert staging._memory[transport].data_ptr() == first


def test_a_worker_that_cannot_copy_stops_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = background.Staged

    def staged(flat: Any, transport: Any) -> Any:
        if transport.rank == 1:
            raise MemoryError("not so much")
        return real(flat, transport)

    monkeypatch.setattr(background, "Staged", staged)
    errors = crew_errors(3, lambda P: checkpoint.async_save(tmp_path / "c", {"x": torch.ones(9)}, P))
    assert {type(error) for error in errors} == {CheckpointWriteFailed}
    assert len({str(error) for error in errors}) == 1
    assert "worker 1: the state cannot be copied: MemoryError" in str(errors[0])
    assert not (tmp_path / "c").exists()


def test_it_is_committed_without_another_call(tmp_path: Path) -> None:
    def body(P: Partition) -> None:
        pending = checkpoint.async_save(tmp_path / "c", {"own": checkpoint.PerWorker(torch.full((4,), P.rank))}, P)
        assert pending is not None
        pending._thread.join(20)
        assert pending.done()
        P.barrier()
        assert (tmp_path / "c" / "manifest.json").is_file()

    crew(3, body)
    assert [int(own[0]) for own in checkpoint.load(tmp_path / "c")["own"]] == [0, 1, 2]
    assert not list((tmp_path / "c").rglob("*.part*"))


def test_the_next_call_waits_for_the_one_in_flight(tmp_path: Path) -> None:
    for step in range(5):
        checkpoint.async_save(tmp_path / "c", {"step": step, "x": torch.full((1000,), step)})
    found: dict[str, Any] = {"step": None, "x": torch.zeros(1000, dtype=torch.int64)}
    checkpoint.load(tmp_path / "c", found)
    assert found["step"] == 4
    assert torch.equal(found["x"], torch.full((1000,), 4))


@pytest.mark.parametrize("call", ["save", "async_save", "load"])
def test_a_failure_is_raised_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync", lambda fd: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        pending = checkpoint.async_save(tmp_path / "c", {"x": torch.ones(3)})
        assert pending is not None
        pending._written.wait()
        pending._thread.join()
    with pytest.raises(CheckpointWriteFailed, match="Input/output error"):
        getattr(checkpoint, call)(tmp_path / "d", {"x": torch.ones(3)})
    checkpoint.save(tmp_path / "d", {"x": torch.ones(3)})  # raised once, then forgotten
    for _ in range(2):
        with pytest.raises(CheckpointWriteFailed, match="Input/output error"):  # but not by the save that failed
            pending.wait()


def test_differing_replicas_are_noticed(tmp_path: Path) -> None:
    def body(P: Partition) -> None:
        pending = checkpoint.async_save(tmp_path / "c", {"x": torch.full((3,), float(P.rank))}, P)
        assert pending is not None
        pending.wait()

    errors = crew_errors(2, body)
    assert all("'x' is taken to be the same" in str(error) for error in errors)
    assert not (tmp_path / "c").exists()


def test_a_program_that_ends_at_once_still_has_its_checkpoint(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys, torch
        from gridwise import checkpoint
        checkpoint.async_save(sys.argv[1], {"x": torch.ones(2_000_000)})
    """)
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "c")], check=True, timeout=120)
    assert torch.equal(checkpoint.load(tmp_path / "c")["x"], torch.ones(2_000_000))
