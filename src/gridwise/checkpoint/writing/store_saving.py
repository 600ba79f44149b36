"""A checkpoint in a store: how a save starts, commits and cleans up. The files are those of `folder`, without a lock.

    start    remove left-overs of interrupted saves
    commit   check that all data is there; put manifest.json in one request
    finish   remove the data of the checkpoint that was replaced

Stores have no renames, but they replace an object as a whole: the put of the manifest is the commit. A crash before it
leaves the old checkpoint, a crash after it the new one. There are no locks either: a second save to the same path at the
same time is noticed if it has removed this one's data before the commit.
"""

from __future__ import annotations

import secrets

from ...errors import CheckpointError
from ..format.manifest import MANIFEST
from ..store_path import Place, StorePath
from .folder import NUMBERS, Saving, id_of_save, remove_checkpoint, remove_leftovers


class StoreSaving:
    """A save to a store that has started; it has what `Saving` has."""

    def __init__(self, path: StorePath) -> None:
        self.path = path
        self.number = 1 + secrets.randbelow(NUMBERS - 1)
        self.id = id_of_save(self.number)
        self.data = path / f"data-{self.id}"
        self.renamed = False
        if path.is_file():
            raise CheckpointError(f"{path} is an object: a checkpoint is a folder.\n  fix: another path.")
        remove_leftovers(path)

    def commit(self, manifest: bytes) -> None:
        """Make this manifest the checkpoint at the path."""
        (self.path / MANIFEST).write_bytes(manifest)
        self.renamed = True
        remove_leftovers(self.path, keep=self.data.name)

    def abandon(self) -> None:
        """Remove what was written, unless it was committed; the previous checkpoint remains."""
        if not self.renamed:
            self.data.remove_all()


def saving_at(path: Place) -> Saving | StoreSaving:
    """A save that has started at the path."""
    return StoreSaving(path) if isinstance(path, StorePath) else Saving(path)


def remove_checkpoint_at(path: Place) -> None:
    """Remove a whole checkpoint: first its manifest, so that it no longer counts as one, then its data."""
    if isinstance(path, StorePath):
        (path / MANIFEST).unlink()
        path.remove_all()
    else:
        remove_checkpoint(path)


def size_at(path: Place) -> int | None:
    """Bytes of a file or object; None if there is none."""
    if isinstance(path, StorePath):
        return path.size()
    return path.stat().st_size if path.is_file() else None
