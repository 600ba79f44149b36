"""Load a checkpoint onto any grid and any number of workers; verify one without loading it.

    manifest    every worker reads and checks it; if they do not all have the same, the first worker sends its own
    plan        which boxes this worker needs, and whether they fit; nothing is read yet
    check       the bytes of these boxes, and only these, against their checksums
    fill        values into place

Workers agree after planning and after checking, in one step if all have little to check, and at the end. An error up to
and including the check is raised on all workers, and nothing has been changed on any.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, NamedTuple

import torch

from ...errors import CheckpointError
from ...log import logger
from ...partition import Partition
from ..consensus import Consensus, collector_paused
from ..format.chunks import checksum
from ..format.contents import contents_of, read_contents_bytes
from ..format.manifest import Manifest
from ..format.manifest_parser import likely_id, read_manifest
from ..store_path import Place, place_of
from .chunk_reads import all_reads, reads_of_all
from .load_plan import ReadPlan
from .open_file import MissingFile
from .read_ahead import reading_ahead
from .reader import Progress, Reader, check_tied
from .renaming import LoadReport, Rename, renamed
from .restore import plan_load

ATTEMPTS = 5
"""How often a checkpoint is opened if saves keep replacing it at that very moment."""

CHECK_BEFORE_VOTE = 64 << 20
"""Bytes up to which a worker checks before it hears from the others: if one of them has failed, little is lost."""


CHECKED, UNCHECKED, FAILED, REPLACED = range(4)
"""How a worker has started; the maximum over all workers decides how they go on."""


def load(
    path: str | os.PathLike[str],
    into: object = None,
    P: Partition | None = None,
    *,
    cast: bool = False,
    rename: Rename | None = None,
    strict: bool = True,
) -> Any:
    """Fill `into` from the checkpoint at `path`, and return it; with ``strict=False``, a `LoadReport`.

    Parameters
    ----------
    path : where the checkpoint was saved, on any number of workers and any grid; or a safetensors file of any program,
        or a folder of such files with their index, as on the Hugging Face hub
    into : the state to fill, as it was given to `save`, or a part of it: tensors and parameters in place, plain values
        put back into their dicts. Without it, all that was saved is returned as a nested dict of whole tensors.
    P : the workers that load together, default `gridwise.world()`. All of them call this; on others it does nothing.
    cast : convert tensors whose dtype differs, instead of raising
    rename : new names by those in the checkpoint, ``{"model/encoder": "model/backbone", "model/head": None}``: of what has
        a name and of all below it; None leaves it out. Or a function of a key that returns the new one. Optimisers follow
        their parameters
    strict : whether names that the checkpoint lacks, and names inside modules and optimisers that `into` lacks, are
        errors. If not, what is missing stays as it is, and the report says what was left out. Other shapes and dtypes are
        errors in any case

    Raises
    ------
    CheckpointNotFound : nothing is committed there
    CheckpointMismatch : names, shapes, dtypes or counts do not fit
    CheckpointDamaged : bytes are not those that were saved; the message names the file and the tensor

    Notes
    -----
    Each worker reads the chunks (1 MiB) that hold elements of its own blocks and no others. Nothing is changed, on any
    worker, before all of them have checked everything that they need. Safetensors files of other programs have no
    checksums: only sizes, names, shapes and dtypes are checked. Their names are those of one module, which may be under
    any key: ``into=model`` and ``into={"model": model}`` mean the same.

    Examples
    --------
    >>> state = checkpoint.load(path, into={"model": model, "optim": optimiser})
    """
    if P is not None and not P.active:
        return into if strict else LoadReport(into, (), ())
    place = place_of(path)
    consensus = Consensus(P, "loading", place)
    consensus.settle()
    with collector_paused():
        return _load(consensus, place, into, Wish(cast, rename, strict))


class Wish(NamedTuple):
    """How a state is to be filled: the arguments of `load`."""

    cast: bool
    rename: Rename | None
    strict: bool


def _load(consensus: Consensus, path: Place, into: object, wish: Wish) -> Any:
    for attempt in range(1, ATTEMPTS + 1):
        started = _started(consensus, path, into, wish, attempt)
        if started is not None:
            break
    assert started is not None
    plan, reader, all_checked = started
    with reader:
        if not all_checked:
            consensus.together(partial(_check, reader, plan))
        consensus.together(
            partial(_fill, reader, plan), tail="\n  the state may be partly filled: load again before using it."
        )
    if isinstance(plan.result, LoadReport) and consensus.is_root and (plan.result.missing or plan.result.left_out):
        logger.warning("%s:\n%s", consensus.what, plan.result)
    return plan.result


def _started(
    consensus: Consensus, path: Place, into: object, wish: Wish, attempt: int
) -> tuple[ReadPlan, Reader, bool] | None:
    """The plan, the open data files, and whether all workers have checked theirs.

    None if the workers have read different manifests, or a save has replaced the files of any of them meanwhile.
    """
    data = None if attempt == 1 else consensus.from_root(partial(read_contents_bytes, path))
    number = 0
    manifest: Manifest | None = None
    reader: Reader | None = None
    error: Exception | None = None
    try:
        data = read_contents_bytes(path) if data is None else data
        number = int(checksum(data)[1:], 16)
        with reading_ahead(path / f"data-{likely_id(data)}" / f"w{consensus.index}.safetensors"):
            manifest = contents_of(data, path)
            if wish.rename is not None:
                manifest = renamed(manifest, wish.rename)
            here = consensus.rank, consensus.index, consensus.size
            plan = plan_load(manifest, into, *here, wish.cast, wish.strict)
            reader = Reader(path, manifest, reads_of_all(plan.wants), consensus.transport.cores)
            if reader.nbytes <= CHECK_BEFORE_VOTE:
                _check(reader, plan)
    except Exception as caught:
        error = caught
    replaced = (
        isinstance(error, MissingFile) and attempt < ATTEMPTS and _id_now(path) not in (None, manifest and manifest.id)
    )
    unchecked = reader is None or not reader.is_checked
    state = REPLACED if replaced else FAILED if error is not None else UNCHECKED if unchecked else CHECKED
    try:
        alike, state = consensus.vote("gridwise.checkpoint.load", number, state)
        if alike and state == FAILED:
            if attempt > 1:  # not all have read the manifest that is at their path
                consensus.check_one_path(path)
            consensus.agree(error)
        if alike and state != REPLACED:
            assert reader is not None
            return plan, reader, state == CHECKED
    except BaseException:
        if reader is not None:
            reader.close()
        raise
    if reader is not None:
        reader.close()
    return None


def _id_now(path: Place) -> str | None:
    try:
        return read_manifest(path).id
    except CheckpointError:
        return None


def _check(reader: Reader, plan: ReadPlan) -> None:
    if not reader.is_checked:
        _wait_for_devices(plan)
        check_tied(reader, plan.wants)
        reader.check()


def _wait_for_devices(plan: ReadPlan) -> None:
    """Wait for work queued on devices: reading threads must not fill tensors there that are still in use."""
    if not torch.cuda.is_initialized():
        return
    for device in {want.target.device for want in plan.wants if want.target.is_cuda}:
        torch.cuda.synchronize(device)


def _fill(reader: Reader, plan: ReadPlan) -> None:
    reader.fill()
    _wait_for_devices(plan)
    changed = [want.target for want in plan.wants if not want.fresh]
    if changed:
        torch.autograd.graph.increment_version(changed)
    with torch.no_grad():
        for finish in plan.finish:
            finish()


def verify(path: str | os.PathLike[str], progress: Progress | None = None) -> Manifest:
    """Check every byte of the checkpoint at `path` against its checksums; return its manifest.

    Raises `CheckpointDamaged`, naming the files and tensors that are wrong. One process does it; no state is needed.

    Parameters
    ----------
    path : the folder of a checkpoint
    progress : called with the number of bytes that were checked since the last call

    Examples
    --------
    >>> sorted(checkpoint.verify(path).tensors)
    ['model/bias', 'model/weight']
    """
    where = place_of(path)
    manifest = read_manifest(where)
    with Reader(where, manifest, all_reads(manifest)) as reader:
        reader.check(progress)
    return manifest
