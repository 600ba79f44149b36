"""The lock of a folder: held once, even while another process removes its file."""

from __future__ import annotations

import fcntl
from contextlib import closing
from pathlib import Path

import pytest

from gridwise.checkpoint import disk
from gridwise.errors import CheckpointBusy


@pytest.mark.parametrize("made_again", [False, True])
def test_a_lock_whose_file_was_removed_meanwhile_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_again: bool
) -> None:
    real, calls = fcntl.flock, []

    def flock(fd: int, operation: int) -> None:
        calls.append(fd)
        if len(calls) == 1:  # another process removes the file between this one's `open` and `flock`
            (tmp_path / ".lock").unlink()
            if made_again:
                (tmp_path / ".lock").touch()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with closing(disk.Lock(tmp_path)), pytest.raises(CheckpointBusy):
        disk.Lock(tmp_path)
    disk.Lock(tmp_path).close()


def test_a_lock_whose_file_is_always_removed_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_is_at", lambda path, fd: False)
    with pytest.raises(CheckpointBusy, match="keep removing"):
        disk.Lock(tmp_path)
