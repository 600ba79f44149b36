"""Reading ahead is a guess: right, wrong or impossible, the load is the same."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gridwise import checkpoint
from gridwise.checkpoint.reading import loading, read_ahead
from gridwise.checkpoint.reading.open_file import NOWAIT, is_cached
from gridwise.checkpoint.reading.read_ahead import reading_ahead

SIZE = 3 << 20


def on_disk_only(path: Path) -> bool:
    """Ask the system to forget the contents of a file; whether it has."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return NOWAIT is not None and not is_cached(fd, 0, path.stat().st_size)
    finally:
        os.close(fd)


@pytest.mark.parametrize("piece", [read_ahead.PIECE, 1 << 20, 1_000_000])
def test_a_file_is_in_memory_when_the_body_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(read_ahead, "PIECE", piece)

    def share_in_memory(path: Path) -> float:
        path.write_bytes(os.urandom(SIZE))
        if not on_disk_only(path):
            pytest.skip("this system keeps files in memory, or does not say so")
        with reading_ahead(path):
            pass
        with open(path, "rb") as file:
            return sum(is_cached(file.fileno(), start, 4096) for start in range(0, SIZE, 4096)) / (SIZE // 4096)

    # A busy system may drop pages again, and denies those that it has marked for reading further ahead.
    assert any(share_in_memory(tmp_path / f"file-{attempt}") > 0.9 for attempt in range(5))


def test_a_call_that_sends_less_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def send(nowhere: int, fd: int, start: int, size: int) -> int:
        asked.append((start, size))
        return min(size, 600)

    monkeypatch.setattr(read_ahead.os, "sendfile", send)
    monkeypatch.setattr(read_ahead, "PIECE", 700)
    read_ahead._send(-1, -1, 1000)
    assert asked == [(0, 700), (600, 400)]


def test_no_more_than_allowed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    monkeypatch.setattr(read_ahead, "MOST_GUESSED", 1000)
    monkeypatch.setattr(read_ahead, "is_cached", lambda *_: False)
    sent: list[int] = []
    monkeypatch.setattr(read_ahead, "_send", lambda nowhere, fd, size: sent.append(size))
    with reading_ahead(path):
        pass
    assert sent == [1000]


def test_nothing_is_read_that_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    monkeypatch.setattr(read_ahead, "is_cached", lambda *_: True)
    begun: list[threading.Thread] = []
    monkeypatch.setattr(read_ahead, "started", lambda thread: begun.append(thread))
    with reading_ahead(path):
        assert begun == []
    monkeypatch.setattr(read_ahead, "is_cached", lambda *_: False)
    with reading_ahead(path):
        assert [thread.name for thread in begun] == ["gridwise-ahead"], "and what is not there is read"


def absent(path: Path) -> None:
    pass


def folder(path: Path) -> None:
    path.mkdir()


def empty(path: Path) -> None:
    path.touch()


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("made", [absent, folder, empty, pipe])
def test_what_cannot_be_read_is_nothing_to_speak_of(tmp_path: Path, made: Callable[[Path], None]) -> None:
    made(tmp_path / "file")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    entered = False
    with reading_ahead(tmp_path / "file"):
        entered = True
    assert entered
    assert not [thread for thread in threading.enumerate() if thread.name == "gridwise-ahead"]
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_an_error_in_the_body_is_raised_and_no_thread_or_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    on_disk_only(path)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with pytest.raises(OSError, match="of the body"), reading_ahead(path):
        raise OSError("of the body")
    assert not [thread for thread in threading.enumerate() if thread.name == "gridwise-ahead"]
    assert not before or len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("cold", [True, False])
def test_a_load_reads_ahead_what_this_worker_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    saved = {f"t{i}": torch.randn(1000) for i in range(50)}
    checkpoint.save(tmp_path / "c", saved)
    (written,) = (tmp_path / "c").glob("data-*/w0.safetensors")
    if cold:
        on_disk_only(written)
    guessed: list[Path] = []
    monkeypatch.setattr(loading, "reading_ahead", lambda path: (guessed.append(path), reading_ahead(path))[1])
    into = {key: torch.zeros_like(x) for key, x in saved.items()}
    checkpoint.load(tmp_path / "c", into)
    assert guessed == [written]
    assert all(torch.equal(into[key], x) for key, x in saved.items())
