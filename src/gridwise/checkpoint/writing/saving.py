"""Save a state: one checkpoint at a path, complete or not at all.

    start      lock, clean up, make the data folder                        first worker
    agree      the same names, shapes and values on all workers            all
    write      a data file, synced; checksums are computed on the way      every worker
    compare    replicas are equal, blocks fill their tensors               first worker
    commit     rename of manifest.json                                     first worker

An error anywhere is raised on all workers, and nothing is committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from ...errors import CheckpointError, CheckpointMismatch, CheckpointWriteFailed
from ...partition import Partition
from ..consensus import Consensus, attempt, collector_paused
from ..format.data_file import write_data_file
from ..state.flatten import Flat, flatten
from ..state.same_structure import check_alike, number_of
from ..store_path import Place, StorePath, place_of
from .folder import NUMBERS, Saving, id_of_save
from .manifest_assembly import WrittenPart, assembled, written_part
from .store_saving import StoreSaving, saving_at, size_at
from .write_shares import Shares, blocks_to_write, check_same, shares_of

Copy = TypeVar("Copy")

NOTHING_COMMITTED = "\n  nothing was committed; what was at the path before is untouched."

NOT_SYNCED = "\n  the new checkpoint is in place and whole, but may not survive a loss of power; the old data stays."


CANNOT_SAVE = NUMBERS
"""What a worker that cannot save votes, where the first worker votes the save's number."""


def save(
    path: str | os.PathLike[str],
    state: object,
    P: Partition | None = None,
    *,
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Write the state as one checkpoint at `path`, replacing the one that is there.

    Parameters
    ----------
    path : a folder, created with its parents if necessary; or an address in a store: s3://bucket/run
    state : a dict (nested as you like) of tensors, modules, optimisers, schedulers, generators, plain values and
        `PerWorker` values; or one of these objects by itself
    P : the workers that save together, default `gridwise.world()`. All of them call this; on others it does nothing.
    metadata : plain values by name that lie beside the state, the same on all workers; `checkpoint.metadata` reads them

    Notes
    -----
    When it returns, the checkpoint survives a kill and a loss of power. Until then the previous one remains. The
    tensors are written from their own memory: do not change them meanwhile (see `async_save`).

    Examples
    --------
    >>> checkpoint.save(path, {"model": model, "optim": optimiser, "step": 100})
    """
    if P is not None and not P.active:
        return
    place = place_of(path)
    consensus = Consensus(P, "saving", place)
    consensus.settle()
    with collector_paused():
        save_flat(consensus, place, lambda: flatten(state, consensus.rank, consensus.index, metadata=metadata))


def save_flat(consensus: Consensus, path: Place, flattened: Callable[[], Flat]) -> None:
    """Save what `flattened` returns on each worker."""
    flat, _, saving, save_id = start(consensus, path, lambda _: (flattened(), None))
    parts: list[WrittenPart] = []

    def written() -> bytes:
        parts.append(write_part(path / f"data-{save_id}", save_id, consensus.index, flat, shares, consensus.size))
        return b"" if consensus.is_root else parts[0].to_bytes()

    try:
        shares = shares_of(flat.tensors, consensus.size)
        others = consensus.gathered_from_others(written, CheckpointWriteFailed, NOTHING_COMMITTED)
        consensus.on_root(lambda: commit(saving, parts[0], others, flat, shares, consensus), CheckpointWriteFailed)
    except BaseException:
        if saving is not None:
            saving.abandon()
        raise


def start(
    consensus: Consensus, path: Place, prepared: Callable[[bool], tuple[Flat, Copy]], in_groups: bool = False
) -> tuple[Flat, Copy, Saving | StoreSaving | None, str]:
    """Start a save: the flat state, its copy, the first worker's `Saving`, and the id, once all workers hold the same.

    With `in_groups`, plain tensors stay in groups if they are plain on all workers. A single vote tells whether any
    worker has failed, whether all hold the same, and the id.
    """
    number, saving, not_started = 0, None, None

    def prepare() -> tuple[Flat, Copy]:
        nonlocal number
        if isinstance(path, StorePath):
            path.check()
        ready = prepared(in_groups)
        number = number_of(ready[0], path) if consensus.size > 1 else 0
        return ready

    ready, failed = attempt(prepare)
    if consensus.is_root and failed is None:
        saving, not_started = attempt(lambda: saving_at(path))
    which = CANNOT_SAVE if failed is not None else saving.number if saving is not None else 0
    try:
        alike, which = consensus.vote("gridwise.checkpoint.save", number, which)
        if which == CANNOT_SAVE:
            consensus.agree(failed, CheckpointMismatch, NOTHING_COMMITTED)
        if not alike:
            if in_groups:
                # A tensor that is plain on some workers only may still be stored alike: compare without groups.
                ready = consensus.together(lambda: prepared(False), CheckpointMismatch, NOTHING_COMMITTED)
            assert ready is not None
            check_alike(consensus, path, ready[0])
        if not which:
            consensus.agree(not_started, CheckpointWriteFailed, NOTHING_COMMITTED)
        assert ready is not None
        return *ready, saving, id_of_save(which)
    except BaseException:
        if saving is not None:
            saving.abandon()
        raise


@torch.no_grad()
def write_part(folder: Place, save_id: str, place: int, flat: Flat, shares: Shares, workers: int) -> WrittenPart:
    """Write this worker's data file, and return what is in it. No communication: any thread may call it."""
    blocks = blocks_to_write(flat, shares, place)
    if blocks and isinstance(folder, Path) and not folder.is_dir():  # which the first worker has made
        raise CheckpointError(
            f"there is no {folder} here, where the first worker's part is.",
            fix="give all workers one path, on a file system that they share.",
        )
    written = write_data_file(folder / f"w{place}.safetensors", save_id, blocks) if blocks else None
    return written_part(flat, shares, place, workers, written)


def commit(
    saving: Saving | StoreSaving | None,
    own: WrittenPart,
    others: list[bytes],
    flat: Flat,
    shares: Shares,
    consensus: Consensus,
) -> None:
    """On the first worker: check that all parts together are complete and that replicas agree, and commit."""
    assert saving is not None
    try:
        parts = [own, *map(WrittenPart.from_bytes, others)]
        if len(parts) > 1:
            check_same(shares, [part.same for part in parts], consensus.P.ranks)
        if len(parts) > 1 or isinstance(saving, StoreSaving):
            _check_files_are_here(saving.data, parts, consensus.P.ranks)
        saving.commit(assembled(saving.id, parts, flat, consensus.P.ranks))
    except Exception as error:
        kind = type(error) if isinstance(error, CheckpointError) else CheckpointWriteFailed
        raise kind(f"{error}{NOT_SYNCED if saving.renamed else NOTHING_COMMITTED}") from error


def _check_files_are_here(folder: Place, parts: list[WrittenPart], ranks: Sequence[int]) -> None:
    for rank, part in zip(ranks, parts, strict=True):
        if part.file is not None:
            name, size, *_ = part.file
            found = size_at(folder / name)
            if found != size:
                raise CheckpointError(
                    f"worker {rank} has written {folder / name} with {size} bytes, the first worker sees {found}.\n"
                    "  fix: `path` must be on a file system, or in a store, that all workers share; one save at a time."
                )
