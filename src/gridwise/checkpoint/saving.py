"""Save a state: one checkpoint at a path, whole or not at all.

    agree      the same names, shapes and values on all workers            all
    start      lock, clean up, make the data folder                        first worker
    write      its own data file, synced; checksums on the way             every worker
    compare    replicas are equal, blocks fill their tensors               first worker
    commit     rename of manifest.json                                     first worker

An error anywhere is raised on all workers, and nothing is committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import CheckpointError, CheckpointMismatch, CheckpointWriteFailed
from ..grid import Box
from ..partition import Partition
from .chunks import checksum
from .datafile import sums_of, write_data_file
from .folder import Saving
from .manifest import Manifest, StoredBlock, StoredFile, StoredTensor
from .share import Shares, block_of, blocks_to_write, check_same, same_sums, shares_of
from .state import Flat, flatten
from .structure import agreed
from .talk import Talk, collector_paused
from .tiling import tiling_problem

NOTHING_COMMITTED = "\n  nothing was committed; what was at the path before is untouched."

NOT_SYNCED = "\n  the new checkpoint is in place and whole, but may not survive a loss of power; the old data stays."

Message = dict[str, Any]
"""What a worker tells the first one about its part: JSON."""


def save(path: str | os.PathLike[str], state: Any, P: Partition | None = None) -> None:
    """Write the state as one checkpoint at `path`, in place of the one that is there.

    Parameters
    ----------
    path : a folder; it is made, with its parents, if need be
    state : a dict (nested as you like) of tensors, modules, optimisers, schedulers, generators, plain values and
        `PerWorker` values; or one of these objects by itself
    P : the workers that save together, default `gridwise.world()`. All of them call this; others do nothing.

    Notes
    -----
    When it returns, the checkpoint survives a kill and a loss of power. Until then the previous one stands. The tensors
    are written from their own memory: do not change them meanwhile (see `async_save`).

    Examples
    --------
    >>> checkpoint.save(path, {"model": model, "optim": optimiser, "step": 100})
    """
    if P is not None and not P.active:
        return
    talk = Talk(P, "saving", Path(path))
    talk.settle()
    with collector_paused():
        save_flat(talk, Path(path), partial(flatten, state, talk.rank, talk.place))


def save_flat(talk: Talk, path: Path, flattened: Callable[..., Flat]) -> None:
    """Save what `flattened` gives on each worker."""
    flat, saving, save_id = start(talk, path, flattened)
    try:
        shares = shares_of(flat.tensors, talk.size)
        message = talk.together(
            partial(write_part, path / f"data-{save_id}", save_id, talk.place, flat, shares, talk.size),
            CheckpointWriteFailed,
            NOTHING_COMMITTED,
        )
        messages = talk.to_root(message)
        talk.on_root(partial(commit, saving, messages, flat, shares, talk), CheckpointWriteFailed)
    except BaseException:
        if saving is not None:
            saving.abandon()
        raise


def start(
    talk: Talk, path: Path, flattened: Callable[..., Flat], in_groups: bool = False
) -> tuple[Flat, Saving | None, str]:
    """Agree on what is saved and start: the flat state, the first worker's lock, and the save's id."""
    flat = agreed(talk, flattened, in_groups, NOTHING_COMMITTED)
    saving, error = None, None
    words = np.zeros(5, dtype=np.int64)  # whether it failed, and the id: one message for both
    if talk.is_root:
        try:
            saving = Saving(path)
            words[1:] = np.frombuffer(bytes.fromhex(saving.id), dtype=">u4")
        except Exception as caught:
            error, words[0] = caught, 1
    try:
        talk.transport.all_max(words, talk.team, talk.what)
        if words[0]:
            talk.agree(error, CheckpointWriteFailed, NOTHING_COMMITTED)
        return flat, saving, words[1:].astype(">u4").tobytes().hex()
    except BaseException:
        if saving is not None:
            saving.abandon()
        raise


@torch.no_grad()
def write_part(folder: Path, save_id: str, place: int, flat: Flat, shares: Shares, workers: int) -> Message:
    """Write this worker's data file, and tell what is in it. No communication: any thread may do it."""
    blocks = blocks_to_write(flat, shares, place)
    written = write_data_file(folder / f"w{place}.safetensors", save_id, blocks) if blocks else None
    placed = written.blocks if written else []
    message: Message = {
        "file": list(written.file) if written else None,
        "blocks": [[block.key, _ends(block.box), offset, sums] for block, offset, sums in placed],
        "own": {key: [x.code, list(x.shape)] for key, x in flat.own_tensors.items()},
        "values": flat.own_values,
        "same": [],
        "replicas": [],
    }
    if workers > 1:
        known = {(block.key, place): sums for block, _, sums in placed}
        message["same"] = same_sums(flat, shares, known)
        message["replicas"] = _replicas(flat)
    return message


def _replicas(flat: Flat) -> list[Any]:
    """Blocks that lie here and are written by others: where they are, and one checksum of each."""
    return [
        [key, _ends(part.box), checksum(sums_of(block_of(key, x, part, part.box)).encode())]
        for tensors in (flat.tensors, flat.own_tensors)
        for key, x in tensors.items()
        if not x.everywhere
        for part in x.parts
        if not part.owned
    ]


def _ends(box: Box | None) -> list[list[int]] | None:
    return None if box is None else [list(box.start), list(box.stop)]


def commit(saving: Saving | None, messages: list[Message] | None, flat: Flat, shares: Shares, talk: Talk) -> None:
    """On the first worker: put the parts together, check that they are whole and alike, and commit."""
    assert saving is not None
    assert messages is not None
    try:
        if len(messages) > 1:
            check_same(shares, [message["same"] for message in messages], talk.P.ranks, talk.what)
            _check_files_are_here(saving.data, messages)
        saving.commit(assembled(saving.id, messages, flat, talk.size))
    except Exception as error:
        kind = type(error) if isinstance(error, CheckpointError) else CheckpointWriteFailed
        raise kind(f"{error}{NOT_SYNCED if saving.renamed else NOTHING_COMMITTED}") from error


def _check_files_are_here(folder: Path, messages: list[Message]) -> None:
    for place, message in enumerate(messages):
        if message["file"] is not None:
            name, size, *_ = message["file"]
            found = (folder / name).stat().st_size if (folder / name).is_file() else None
            if found != size:
                raise CheckpointError(
                    f"worker {place} has written {folder / name} with {size} bytes, the first worker sees {found}.\n"
                    "  fix: `path` must be on a file system that all workers share."
                )


def assembled(save_id: str, messages: list[Message], flat: Flat, workers: int) -> Manifest:
    """The manifest of the parts that all workers have written."""
    known: dict[str, tuple[str, tuple[int, ...]]] = {key: (x.code, x.shape) for key, x in flat.tensors.items()}
    values = dict(flat.values)
    files: list[StoredFile] = []
    blocks: dict[str, tuple[StoredBlock, ...]] = {}
    for message in messages:
        for key, (code, shape) in message["own"].items():
            if known.setdefault(key, (code, tuple(shape))) != (code, tuple(shape)):
                raise CheckpointMismatch(
                    f"{key!r} is {known[key]} on one worker and {(code, tuple(shape))} on another."
                )
        values |= message["values"]
        number = len(files)
        for key, ends, offset, sums in message["blocks"]:
            box = None if ends is None else _whole_is_none(Box(*map(tuple, ends)), known[key][1])
            blocks[key] = (*blocks.get(key, ()), StoredBlock(number, offset, sums, box))
        if message["file"] is not None:
            files.append(StoredFile(*message["file"]))
    tensors = {key: StoredTensor(code, shape, blocks.get(key, ())) for key, (code, shape) in known.items()}
    if workers > 1 or any(not x.everywhere for x in flat.tensors.values()):
        _check_whole(tensors)
        _check_replicas(tensors, messages)
    from ..version import __version__

    return Manifest(
        save_id,
        flat.workers or workers,
        tuple(files),
        tensors,
        values,
        dict.fromkeys(flat.per_worker, flat.workers or workers),
        f"gridwise {__version__}",
        datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _whole_is_none(box: Box, shape: tuple[int, ...]) -> Box | None:
    return None if box == Box.of_shape(shape) else box


def _check_whole(tensors: dict[str, StoredTensor]) -> None:
    for key, tensor in tensors.items():
        if len(tensor.blocks) == 1 and tensor.blocks[0].box is None:
            continue
        problem = tiling_problem(tensor.shape, tensor.boxes())
        if problem is not None:
            raise CheckpointMismatch(
                f"the blocks of {key!r} that the workers hold {problem}.\n"
                "  fix: every worker of the layout must be among those that save (`P`)."
            )


def _check_replicas(tensors: dict[str, StoredTensor], messages: list[Message]) -> None:
    for place, message in enumerate(messages):
        for key, ends, found in message["replicas"]:
            shape = tensors[key].shape
            box = None if ends is None else _whole_is_none(Box(*map(tuple, ends)), shape)
            written = next((block for block in tensors[key].blocks if block.box == box), None)
            if written is None or checksum(written.sums.encode()) != found:
                raise CheckpointMismatch(
                    f"the replica of {key!r} {ends or 'whole'} on worker {place} differs from the block that its owner has.\n"
                    "  fix: replicas must be identical; `gridwise.nn.Broadcast` makes them so."
                )
