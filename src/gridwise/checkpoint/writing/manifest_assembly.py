"""The manifest of what all workers have written, compared and put together.

Blocks must fill their tensors, copies must be equal, and workers that name a tensor must agree about what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain

from ...errors import CheckpointMismatch
from ...grid import Box, Shape, tiling_problem
from ...version import __version__
from ..format.chunks import checksum
from ..format.manifest import Manifest, StoredBlock, StoredTensor, to_bytes
from ..state.flatten import Flat
from .written_part import WrittenPart


def assembled(save_id: str, parts: Sequence[WrittenPart], flat: Flat, workers: int) -> bytes:
    """The manifest of the parts that all workers have written, as it is to be stored."""
    tensors = _stored_tensors(parts, flat)
    _check_whole(tensors)
    _check_replicas(tensors, parts)
    manifest = Manifest(
        save_id,
        flat.workers or workers,
        tuple(part.file for part in parts if part.file is not None),
        tensors,
        dict(chain(flat.values.items(), *(part.values.items() for part in parts))),
        dict.fromkeys(flat.per_worker, flat.workers or workers),
        f"gridwise {__version__}",
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return to_bytes(manifest)


def _stored_tensors(parts: Sequence[WrittenPart], flat: Flat) -> dict[str, StoredTensor]:
    """All tensors, of all blocks that anybody has written; first those that everybody names."""
    known: dict[str, tuple[str, Shape]] = {key: (x.code, tuple(x.shape)) for key, x in flat.tensors.items()}
    blocks: dict[str, list[StoredBlock]] = {}
    number = 0
    for part in parts:
        for key, (code, extents) in part.own.items():
            kind = code, tuple(extents)
            if known.setdefault(key, kind) != kind:
                raise CheckpointMismatch(f"{key!r} is {known[key]} on one worker and {kind} on another.")
        for key, ends, offset, sums in part.blocks:
            blocks.setdefault(key, []).append(StoredBlock(number, offset, sums, _box(ends, known[key][1])))
        number += part.file is not None
    return {key: StoredTensor(code, shape, tuple(blocks.get(key, ()))) for key, (code, shape) in known.items()}


def _box(ends: Sequence[Sequence[int]] | None, shape: Shape) -> Box | None:
    """A box that was told; None if it is the whole of the tensor."""
    box = None if ends is None else Box(*map(tuple, ends))
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


def _check_replicas(tensors: dict[str, StoredTensor], parts: Sequence[WrittenPart]) -> None:
    for place, part in enumerate(parts):
        for key, ends, found in part.replicas:
            box = _box(ends, tensors[key].shape)
            written = next((block for block in tensors[key].blocks if block.box == box), None)
            if written is None or checksum(written.sums.encode()) != found:
                raise CheckpointMismatch(
                    f"the replica of {key!r} {ends or 'whole'} on worker {place} differs from the block that its owner has.\n"
                    "  fix: replicas must be identical; `gridwise.nn.Broadcast` makes them so."
                )
