"""The folder of a checkpoint: how a save starts, commits and cleans up.

    path/
      manifest.json             the checkpoint: whatever it names is committed, everything else is a left-over
      data-<id>/w0.safetensors  ...
      manifest-<id>.tmp         only from the writing of a manifest to its rename
      .lock                     an empty file that a save locks

    start    lock; remove left-overs of interrupted saves; make data-<id>/
    commit   sync data-<id>/; write and sync manifest-<id>.tmp; rename it to manifest.json; sync the folder
    finish   remove the data of the checkpoint that was replaced; unlock

A rename can replace a file, but not a folder: the rename of the manifest is the commit. A crash before it leaves the
old checkpoint, a crash after it the new one, complete. Committed files are never modified.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import xxhash

from ...errors import CheckpointDamaged, CheckpointError, CheckpointNotFound
from .. import disk
from ..disk import Lock
from ..format.manifest import MANIFEST
from ..format.manifest_parser import id_of, read_manifest_bytes
from ..store_path import Place

_OURS = re.compile(r"data-[0-9a-f]{32}|manifest-[0-9a-f]{32}\.tmp")


NUMBERS = 1 << 62
"""The number of a save is drawn from between 0 and this, both excluded."""


def id_of_save(number: int) -> str:
    """The id of a save, 32 hexadecimal digits, from its number, which fits into one word of a vote."""
    return xxhash.xxh3_128_hexdigest(number.to_bytes(8, "little"))


class Saving:
    """A save that has started: it holds the lock of the folder until `commit` or `abandon`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 1 + secrets.randbelow(NUMBERS - 1)
        self.id = id_of_save(self.number)
        self.data = path / f"data-{self.id}"
        if path.exists() and not path.is_dir():
            raise CheckpointError(
                f"{path} is a file: a checkpoint is a folder.\n  fix: another path, or remove the file."
            )
        self._made = not path.exists()
        self.renamed = False
        path.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(path)
        try:
            remove_leftovers(path)
            disk.make_folder(self.data)
        except BaseException:
            self.abandon()
            raise

    def commit(self, manifest: bytes) -> None:
        """Make this manifest the checkpoint at the path. When this returns it survives a loss of power."""
        draft = self.path / f"manifest-{self.id}.tmp"
        disk.sync_folder(self.data)
        disk.write_file(draft, manifest)
        disk.sync_folder(self.path)  # the names of the data folder and the draft are durable now
        disk.rename(draft, self.path / MANIFEST)
        self.renamed = True
        disk.sync_folder(self.path)
        if self._made:
            disk.sync_folder(self.path.parent)
        remove_leftovers(self.path, keep=self.data.name)
        self._lock.close()

    def abandon(self) -> None:
        """Remove what was written, unless it was committed; the previous checkpoint remains."""
        if not self.renamed:
            disk.remove(self.data)
            disk.remove(self.path / f"manifest-{self.id}.tmp")
            if self._made:  # the lock is still held: its file must not be that of another save
                with contextlib.suppress(OSError):
                    disk.unlink(self.path / ".lock")
                    self.path.rmdir()
        self._lock.close()


def committed_folder(path: Place) -> str | None:
    """The data folder of the committed checkpoint; None if there is none."""
    try:
        data = read_manifest_bytes(path)
    except CheckpointNotFound:
        return None
    return f"data-{id_of(data, path / MANIFEST)}"


def leftovers(path: Place, keep: str | None = None) -> Iterator[Place]:
    """What uncommitted or replaced saves have left in a checkpoint's folder."""
    if keep is None:
        keep = committed_folder(path)
    items: list[Place] = [*path.iterdir()]
    for item in sorted(items, key=lambda item: item.name):
        if _OURS.fullmatch(item.name) and item.name != keep:
            yield item


def remove_leftovers(path: Place, keep: str | None = None) -> int:
    """Remove the left-overs, and return how many there were. The caller holds the lock."""
    try:
        found = list(leftovers(path, keep))
    except CheckpointDamaged:
        return 0  # it is not known which data the damaged manifest names, so all of it stays until the next commit
    for item in found:
        disk.remove(item)
    return len(found)


def remove_checkpoint(path: Path) -> None:
    """Remove a whole checkpoint: first its manifest, so that it no longer counts as one, then its data."""
    with contextlib.closing(Lock(path)):
        disk.unlink(path / MANIFEST)
        disk.sync_folder(path)
        remove_leftovers(path, keep="")
        disk.remove(path / ".lock")
    with contextlib.suppress(OSError):
        path.rmdir()
