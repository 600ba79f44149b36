"""Folders as on the Hugging Face hub: shards and an index, which `from_pretrained` and most other programs read.

    model-00001-of-00003.safetensors ...     tensors under the names of the torch model, in its order
    model.safetensors.index.json             which tensor is in which shard; written last

A model that fits into one shard is `model.safetensors`, without an index.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...errors import CheckpointError, CheckpointMismatch, CheckpointWriteFailed
from ...local_path import local_path
from ...partition import Partition
from .. import disk
from ..consensus import Consensus
from ..format.safetensors_headers import INDEX, SUFFIX
from ..format.values import unescaped
from ..reading.reader import Progress
from ..writing.saving import save
from .portable import Portable, PortableTensor, portable_of_files
from .safetensors_file import write_tensors

SHARD_SIZE = 5_000_000_000
"""Most bytes of a shard, unless a single tensor is larger."""

METADATA = {"format": "pt"}

_UNFINISHED = re.compile(r"model(-\d{5,}-of-\d{5,})?\.safetensors(\.part(\.tmp)?|\.index\.json\.tmp)")

Shard = dict[str, PortableTensor]


def export(
    path: str | os.PathLike[str], state: object, P: Partition | None = None, *, shard_size: int = SHARD_SIZE
) -> None:
    """Write a model on a grid as a folder that Hugging Face's libraries read: whole tensors under torch's names.

    Parameters
    ----------
    path : a folder without a model in it; created if necessary
    state : a module, or a dict of tensors by name
    P : the workers that hold it, default `gridwise.world()`. All of them call this; on other workers it does nothing.
    shard_size : most bytes of a file, unless a single tensor is larger

    Notes
    -----
    Every worker writes its blocks into a temporary checkpoint beside the files, then some of the files from that; no
    worker ever holds more than one whole tensor. There is no index, and so no model, before everything is on the disk.

    Examples
    --------
    >>> checkpoint.export("exported", model)
    >>> sorted(checkpoint.load("exported"))
    ['bias', 'weight']
    """
    if P is not None and not P.active:
        return
    consensus = Consensus(P, "exporting to", Path(path))
    target = Path(path)
    blocks = target / ".gridwise-export"
    consensus.on_root(partial(_prepare, target, blocks, shard_size), CheckpointWriteFailed)
    try:
        save(blocks, state, P)
        shards = consensus.together(lambda: shards_of(portable_of_files(blocks), shard_size))
        write_shards = partial(_write_shards, target, shards, consensus.index, consensus.size)
        consensus.together(write_shards, CheckpointWriteFailed)
        consensus.on_root(lambda: _commit(target, shards), CheckpointWriteFailed)
    finally:
        if consensus.is_root:
            disk.remove(blocks)
            _remove_unfinished(target)


def write_huggingface(target: Path, portable: Portable, shard_size: int, progress: Progress | None) -> None:
    """Write such a folder in one process, from the contents of any format."""
    shards = shards_of(portable, shard_size)
    _prepare(target, None, shard_size)
    try:
        _write_shards(target, shards, 0, 1, progress)
        _commit(target, shards)
    finally:
        _remove_unfinished(target)


def shards_of(portable: Portable, shard_size: int) -> list[Shard]:
    """The tensors of each file, in order; CheckpointMismatch for what such a folder cannot hold."""
    if portable.values or portable.per_worker:
        others = ", ".join(map(repr, [*portable.values, *portable.per_worker][:8]))
        raise CheckpointMismatch(
            f"a Hugging Face folder holds tensors only, and here is also {others}.",
            fix="export the model alone (`prefix`), or to one .safetensors file, which keeps values as notes.",
        )
    shards: list[Shard] = [{}]
    filled = 0
    for key, x in portable.tensors.items():
        if shards[-1] and filled + x.nbytes > shard_size:
            shards.append({})
            filled = 0
        shards[-1][_name_of(key, x)] = x
        filled += x.nbytes
    return shards


def _name_of(key: str, x: PortableTensor) -> str:
    name = unescaped(key) if "/" not in key else None
    if not isinstance(name, str) or name == "__metadata__":
        raise CheckpointMismatch(
            f"{key!r} lies deeper than the names of one module, which is what a Hugging Face folder holds.",
            fix="export what lies below one key (`prefix`), or a module by itself.",
        )
    if x.code == "C128":
        raise CheckpointMismatch(f"{key!r} is complex128, for which safetensors has no name.")
    return name


def file_names(count: int) -> list[str]:
    if count == 1:
        return [f"model{SUFFIX}"]
    return [f"model-{number:05d}-of-{count:05d}{SUFFIX}" for number in range(1, count + 1)]


def _prepare(target: Path, blocks: Path | None, shard_size: int) -> None:
    if shard_size < 1:
        raise CheckpointMismatch(f"`shard_size` (={shard_size}) must be a number of bytes greater than 0.")
    if local_path(target, CheckpointError).exists() and not target.is_dir():
        raise CheckpointError(f"{target} is a file: a model is exported to a folder.")
    target.mkdir(parents=True, exist_ok=True)
    there = sorted(item.name for item in target.iterdir() if item.name.endswith((SUFFIX, INDEX, ".bin")))
    if there:
        raise CheckpointError(
            f"{target} has a model already: {', '.join(there[:8])}.", fix="another folder, or remove it first."
        )
    _remove_unfinished(target)  # left by an export that was killed
    if blocks is not None:
        disk.remove(blocks)


def _write_shards(
    target: Path, shards: Sequence[Shard], place: int, workers: int, progress: Progress | None = None
) -> None:
    """Write the shards of one worker: every `workers`-th from `place` on."""
    names = file_names(len(shards))
    for number in range(place, len(shards), workers):
        write_tensors(_unfinished(target / names[number]), shards[number], METADATA, progress)


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _remove_unfinished(target: Path) -> None:
    for item in target.iterdir():
        if _UNFINISHED.fullmatch(item.name):
            disk.remove(item)


def _commit(target: Path, shards: Sequence[Shard]) -> None:
    names = file_names(len(shards))
    for name in names:
        disk.rename(_unfinished(target / name), target / name)
    if len(shards) > 1:
        weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(x.nbytes for shard in shards for x in shard.values())
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2) + "\n"
        draft = target / f"model{INDEX}.tmp"
        disk.remove(draft)
        disk.write_file(draft, text.encode())
        disk.rename(draft, target / f"model{INDEX}")
    disk.sync_folder(target)
