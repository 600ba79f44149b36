"""Save a state: one checkpoint at a path, whole or not at all.

    start      lock, clean up, make the data folder                        first worker
    agree      the same names, shapes and values on all workers            all
    write      its own data file, synced; checksums on the way             every worker
    compare    replicas are equal, blocks fill their tensors               first worker
    commit     rename of manifest.json                                     first worker

An error anywhere is raised on all workers, and nothing is committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from ..comm.rollcall import key_of, raise_mismatch
from ..errors import CheckpointError, CheckpointMismatch, CheckpointWriteFailed
from ..partition import Partition
from .assembly import assembled
from .datafile import write_data_file
from .folder import NUMBERS, Saving, id_of_save
from .share import Shares, blocks_to_write, check_same, shares_of
from .state import Flat, flatten
from .structure import check_alike, number_of
from .talk import Talk, collector_paused
from .told import Told, told

Copy = TypeVar("Copy")

NOTHING_COMMITTED = "\n  nothing was committed; what was at the path before is untouched."

NOT_SYNCED = "\n  the new checkpoint is in place and whole, but may not survive a loss of power; the old data stays."


FAILED = NUMBERS
"""What a worker that cannot save has in the place where the first one has the save's number."""


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
        save_flat(talk, Path(path), lambda: flatten(state, talk.rank, talk.place))


def save_flat(talk: Talk, path: Path, flattened: Callable[[], Flat]) -> None:
    """Save what `flattened` gives on each worker."""
    flat, _, saving, save_id = start(talk, path, lambda _: (flattened(), None))
    parts: list[Told] = []

    def written() -> bytes:
        parts.append(write_part(path / f"data-{save_id}", save_id, talk.place, flat, shares, talk.size))
        return b"" if talk.is_root else parts[0].to_bytes()

    try:
        shares = shares_of(flat.tensors, talk.size)
        others = talk.told_by_others(written, CheckpointWriteFailed, NOTHING_COMMITTED)
        talk.on_root(lambda: commit(saving, parts[0], others, flat, shares, talk), CheckpointWriteFailed)
    except BaseException:
        if saving is not None:
            saving.abandon()
        raise


def start(
    talk: Talk, path: Path, prepared: Callable[[bool], tuple[Flat, Copy]], in_groups: bool = False
) -> tuple[Flat, Copy, Saving | None, str]:
    """Prepare what is saved and start: that, the first worker's lock, and the save's id, once all workers hold the same.

    With `in_groups`, plain tensors are left in groups if they are on all workers. One meeting tells whether anybody has
    failed, whether all hold the same, and the id.
    """
    ready, saving = None, None
    failed: Exception | None = None
    not_started: Exception | None = None
    key = key_of("gridwise.checkpoint.save")
    # in the form of `comm.rollcall`; the last says which save it is, or FAILED
    words = np.array([key, -key, 0, 0, 0], dtype=np.int64)
    try:
        ready = prepared(in_groups)
        number = number_of(ready[0], path) if talk.size > 1 else 0
        words[2:4] = number, -number
    except Exception as caught:
        failed, words[4] = caught, FAILED
    if talk.is_root and failed is None:
        try:
            saving = Saving(path)
            words[4] = saving.number
        except Exception as caught:
            not_started = caught
    try:
        talk.transport.all_max(words, talk.team, talk.what)
        if words[0] != -words[1]:
            raise_mismatch(talk.transport, talk.team, talk.what, key)
        if words[4] == FAILED:
            talk.agree(failed, CheckpointMismatch, NOTHING_COMMITTED)
        if words[2] != -words[3]:
            if in_groups:
                # A tensor may be plain on one worker only, and yet be stored alike: nobody leaves any in a group.
                ready = talk.together(lambda: prepared(False), CheckpointMismatch, NOTHING_COMMITTED)
            assert ready is not None
            check_alike(talk, path, ready[0])
        if not words[4]:
            talk.agree(not_started, CheckpointWriteFailed, NOTHING_COMMITTED)
        assert ready is not None
        return *ready, saving, id_of_save(int(words[4]))
    except BaseException:
        if saving is not None:
            saving.abandon()
        raise


@torch.no_grad()
def write_part(folder: Path, save_id: str, place: int, flat: Flat, shares: Shares, workers: int) -> Told:
    """Write this worker's data file, and tell what is in it. No communication: any thread may do it."""
    blocks = blocks_to_write(flat, shares, place)
    written = write_data_file(folder / f"w{place}.safetensors", save_id, blocks) if blocks else None
    return told(flat, shares, place, workers, written)


def commit(saving: Saving | None, own: Told, others: list[bytes], flat: Flat, shares: Shares, talk: Talk) -> None:
    """On the first worker: put its own part and the others' together, check that they are whole and alike, and commit."""
    assert saving is not None
    try:
        parts, number = [own], 0
        for message in others:
            number += parts[-1].file is not None
            parts.append(Told.from_bytes(message, number))
        if len(parts) > 1:
            check_same(shares, [part.same for part in parts], talk.P.ranks)
            _check_files_are_here(saving.data, parts)
        saving.commit(assembled(saving.id, parts, flat, shares, talk.size))
    except Exception as error:
        kind = type(error) if isinstance(error, CheckpointError) else CheckpointWriteFailed
        raise kind(f"{error}{NOT_SYNCED if saving.renamed else NOTHING_COMMITTED}") from error


def _check_files_are_here(folder: Path, parts: list[Told]) -> None:
    for place, part in enumerate(parts):
        if part.file is not None:
            name, size, *_ = part.file
            found = (folder / name).stat().st_size if (folder / name).is_file() else None
            if found != size:
                raise CheckpointError(
                    f"worker {place} has written {folder / name} with {size} bytes, the first worker sees {found}.\n"
                    "  fix: `path` must be on a file system that all workers share."
                )
