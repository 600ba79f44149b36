"""The names that torchdistX's users know: `FileSystemWriter`, `FileSystemReader`, `save_state_dict`, `load_state_dict`.

    fs_writer = cp.FileSystemWriter(path="/checkpoint/")
    cp.save_state_dict(state_dict=model.state_dict(), storage_writer=fs_writer)

What they write is an ordinary Gridwise checkpoint.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import CheckpointMismatch
from ...partition import world
from ..reading.loading import load
from ..writing.saving import save


@dataclass(frozen=True)
class _Folder:
    path: str | os.PathLike[str]

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise CheckpointMismatch(f"`path` (={self.path!r}) must be the name of a folder.")


@dataclass(frozen=True)
class FileSystemWriter(_Folder):
    """Saves to the folder `path`.

    Parameters
    ----------
    path : the folder that becomes a checkpoint

    Examples
    --------
    >>> writer = checkpoint.FileSystemWriter('weights')
    """


@dataclass(frozen=True)
class FileSystemReader(_Folder):
    """Loads from the folder `path`.

    Parameters
    ----------
    path : the folder of a checkpoint

    Examples
    --------
    >>> reader = checkpoint.FileSystemReader(path)
    """


def save_state_dict(state_dict: dict[str, Any], storage_writer: FileSystemWriter, process_group: Any = None) -> None:
    """Save a state dict, with ShardedTensor and DTensor values by their shards; every rank calls it.

    Parameters
    ----------
    state_dict : of a module, or any nested dict of tensors
    storage_writer : where it goes
    process_group : the ranks that take part, anything that `gridwise.world` takes; default: all

    Examples
    --------
    >>> checkpoint.save_state_dict(model.state_dict(), checkpoint.FileSystemWriter('weights'))
    """
    if not isinstance(storage_writer, FileSystemWriter):
        raise CheckpointMismatch(f"`storage_writer` (={storage_writer!r}) must be a FileSystemWriter.")
    save(Path(storage_writer.path), state_dict, None if process_group is None else world(process_group))


def load_state_dict(state_dict: dict[str, Any], storage_reader: FileSystemReader, process_group: Any = None) -> None:
    """Fill the tensors of a state dict in place from what `save_state_dict` has written, on any number of ranks.

    Parameters
    ----------
    state_dict : the tensors to be filled
    storage_reader : where they come from
    process_group : the ranks that take part; default: all

    Examples
    --------
    >>> checkpoint.save_state_dict(model.state_dict(), checkpoint.FileSystemWriter('weights'))
    >>> checkpoint.load_state_dict(model.state_dict(), checkpoint.FileSystemReader('weights'))
    """
    if not isinstance(storage_reader, FileSystemReader):
        raise CheckpointMismatch(f"`storage_reader` (={storage_reader!r}) must be a FileSystemReader.")
    load(Path(storage_reader.path), state_dict, None if process_group is None else world(process_group))
