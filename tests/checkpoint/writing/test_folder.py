"""The folder of a checkpoint: removed whole or not at all, and with one save in it at a time."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from gridwise import checkpoint
from gridwise.checkpoint import disk
from gridwise.checkpoint.writing.folder import Saving, remove_checkpoint
from gridwise.errors import CheckpointBusy


def test_a_manifest_that_cannot_be_removed_keeps_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path / "c", {"x": torch.ones(3)})

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "unlink", refuse)
        with pytest.raises(PermissionError):
            remove_checkpoint(tmp_path / "c")
    assert torch.equal(checkpoint.load(tmp_path / "c")["x"], torch.ones(3))
    remove_checkpoint(tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_save_that_is_abandoned_does_not_take_the_lock_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next save takes the lock at the moment at which the first releases it."""
    first, others = Saving(tmp_path / "c"), []
    real = disk.Lock.close

    def close(lock: disk.Lock) -> None:
        real(lock)
        if not others:
            others.append(None)
            others.append(Saving(tmp_path / "c"))

    with monkeypatch.context() as patch:
        patch.setattr(disk.Lock, "close", close)
        first.abandon()
    with pytest.raises(CheckpointBusy):
        Saving(tmp_path / "c")
    others[1].abandon()
    assert not (tmp_path / "c").exists()


def test_a_save_that_was_committed_can_be_abandoned(tmp_path: Path) -> None:
    saving = Saving(tmp_path / "c")
    saving.commit(b"{}")
    with closing(disk.Lock(tmp_path / "c")):
        saving.abandon()  # another worker has failed since
        with pytest.raises(CheckpointBusy):
            disk.Lock(tmp_path / "c")
