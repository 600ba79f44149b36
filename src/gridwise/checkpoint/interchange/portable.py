"""The contents of any format, on their way to another: whole tensors, read when they are needed, and plain values.

| from | a tensor is made by |
|---|---|
| a Gridwise checkpoint | reading its blocks, and checking every byte |
| safetensors files | mapping the file, which takes no memory |
| an unpickled state | nothing: it is in memory already |
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointMismatch, CheckpointNotFound
from ...grid import Shape
from ..format.contents import read_contents
from ..format.manifest import Manifest, StoredFile, StoredTensor
from ..reading import available_memory
from ..reading.chunk_reads import Want, reads_of_all
from ..reading.open_file import open_checked
from ..reading.reader import Reader
from ..state.flatten import Flat, flatten
from ..state.local_blocks import LocalBlock, LocalTensor
from ..store_path import Place


@dataclass(frozen=True)
class PortableTensor:
    """A tensor: its safetensors dtype, its shape and size, and the function that makes it."""

    code: str
    shape: Shape
    nbytes: int
    make: Callable[[], Tensor]


@dataclass(frozen=True)
class Portable:
    """Tensors and plain values by their keys, and which keys have a value for each of the `workers`."""

    tensors: dict[str, PortableTensor]
    values: dict[str, Any] = field(default_factory=dict)
    per_worker: list[str] = field(default_factory=list)
    workers: int = 1

    def below(self, prefix: str, source: Place) -> Portable:
        """The part below a key, without the key in the names; everything for the empty key."""
        if prefix in self.per_worker:
            raise CheckpointMismatch(
                f"{prefix!r} has a value for each of {self.workers} workers in {source}, and no names of its own.",
                fix=f"what one of them has: `prefix` (='{prefix}/@0').",
            )
        way = f"{prefix}/" if prefix else ""
        tensors = {key[len(way) :]: x for key, x in self.tensors.items() if key.startswith(way)}
        if not tensors:
            has = ", ".join(list(self.tensors)[:8])
            raise CheckpointNotFound(f"{source} has no tensors below {prefix!r}: it has {has or 'none at all'}.")
        values = {key[len(way) :]: value for key, value in self.values.items() if key.startswith(way)}
        per_worker = [key[len(way) :] for key in self.per_worker if key.startswith(way)]
        return Portable(tensors, values, per_worker, self.workers)

    def to_flat(self) -> Flat:
        """The contents as a flat state that one process saves."""
        tensors = {
            key: LocalTensor(x.code, x.shape, [LocalBlock(None, x.make(), False)], everywhere=True)
            for key, x in self.tensors.items()
        }
        return Flat(tensors, self.values, per_worker=self.per_worker, workers=self.workers)


def portable_of_files(path: Place) -> Portable:
    """The contents of the Gridwise checkpoint or the safetensors files at `path`."""
    manifest = read_contents(path)
    tensors = {}
    memory_of = None if manifest.files_of is None else cache(partial(_map, manifest.files_of))
    for key, stored in manifest.tensors.items():
        make = partial(_read, path, manifest, key)
        if memory_of is not None:
            make = partial(_mapped, memory_of, manifest.files, stored)
        tensors[key] = PortableTensor(stored.code, stored.shape, stored.nbytes, make)
    return Portable(tensors, manifest.values, list(manifest.per_worker), manifest.workers)


def portable_of_state(state: dict[str, Any]) -> Portable:
    """The contents of a state that is in memory."""
    flat = flatten(state)
    tensors = {}
    for key, x in (*flat.tensors.items(), *flat.own_tensors.items()):
        data = x.parts[0].data
        tensors[key] = PortableTensor(x.code, x.shape, data.nbytes, data.detach)
    return Portable(tensors, {**flat.values, **flat.own_values}, flat.per_worker, flat.workers or 1)


def _read(path: Place, manifest: Manifest, key: str) -> Tensor:
    stored = manifest.tensors[key]
    available_memory.check_new(stored.nbytes)
    target = torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
    with Reader(path, manifest, reads_of_all([Want(key, stored, target, None, fresh=True)])) as reader:
        reader.check()
    return target


def _map(folder: Path, file: StoredFile) -> mmap.mmap:
    """A file mapped into memory; its pages belong to the page cache, not to this process."""
    fd = open_checked(folder / file.name, file, "", None)
    try:
        # Torch wants writable memory. A private mapping is writable, and the file stays as it is.
        return mmap.mmap(fd, file.size, access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)


def _mapped(memory_of: Callable[[StoredFile], mmap.mmap], files: Sequence[StoredFile], stored: StoredTensor) -> Tensor:
    if not stored.nbytes:
        return torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
    (block,) = stored.blocks
    count = stored.nbytes // stored.dtype.itemsize
    memory = memory_of(files[block.file])
    return torch.frombuffer(memory, dtype=stored.dtype, count=count, offset=block.offset).view(stored.shape)
