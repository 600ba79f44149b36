"""What each worker has written, and the manifest of all of it, checked and assembled on the first worker.

Blocks must fill their tensors, replicas must be equal, and workers that name a tensor must agree on dtype and shape.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from ...errors import CheckpointMismatch
from ...grid import Box, Shape, tiling_problem
from ...version import __version__
from ..format.chunks import checksum
from ..format.data_file import Written, sums_of
from ..format.manifest import WITH_TIES, Manifest, StoredBlock, StoredFile, StoredTensor, to_bytes
from ..state.flatten import Flat
from .write_shares import Shares, block_of, same_sums


@dataclass
class WrittenPart:
    """One worker's part of a save."""

    file: StoredFile | None
    own: dict[str, Any]
    """Dtypes and shapes of its own tensors."""
    blocks: list[Any]
    """The blocks it has written: key, start and stop (None: the whole), offset and checksums of each."""
    values: dict[str, Any]
    same: str
    """One checksum for each tensor that all workers hold, in the order of the shares."""
    replicas: list[Any]
    """Blocks it holds that others write: key, start and stop, and one checksum of each."""

    def to_bytes(self) -> bytes:
        fields = self.file, self.own, self.blocks, self.values, self.same, self.replicas
        return json.dumps(fields, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> WrittenPart:
        file, *others = json.loads(data)
        return cls(None if file is None else StoredFile(*file), *others)


def written_part(flat: Flat, shares: Shares, place: int, workers: int, written: Written | None) -> WrittenPart:
    """What the worker at `place` reports after writing these blocks."""
    placed = written.blocks if written else []
    known = {(block.key, place): sums for block, _, sums in placed} if workers > 1 and shares else {}
    return WrittenPart(
        file=written.file if written else None,
        own={key: [x.code, list(x.shape)] for key, x in flat.own_tensors.items()},
        blocks=[[block.key, _ends(block.box), at, sums] for block, at, sums in placed],
        values=flat.own_values,
        same=same_sums(flat, shares, known) if workers > 1 else "",
        replicas=_replicas(flat) if workers > 1 else [],
    )


def _replicas(flat: Flat) -> list[Any]:
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


def assembled(save_id: str, parts: Sequence[WrittenPart], flat: Flat, ranks: Sequence[int]) -> bytes:
    """The manifest of the parts that the workers of these ranks have written, as it is stored."""
    workers = flat.workers or len(ranks)
    tensors = _stored_tensors(parts, flat)
    _check_whole(tensors)
    _check_replicas(tensors, parts, ranks)
    tensors |= {key: tensors[first] for key, first in flat.tied.items()}
    manifest = Manifest(
        save_id,
        workers,
        tuple(part.file for part in parts if part.file is not None),
        tensors,
        dict(chain(flat.values.items(), *(part.values.items() for part in parts))),
        dict.fromkeys(flat.per_worker, workers),
        f"gridwise {__version__}",
        datetime.now(UTC).isoformat(timespec="seconds"),
        version=WITH_TIES if flat.tied else 1,
        tied=flat.tied,
        metadata=flat.metadata,
    )
    return to_bytes(manifest)


def _stored_tensors(parts: Sequence[WrittenPart], flat: Flat) -> dict[str, StoredTensor]:
    """All tensors, with the blocks that any worker has written; first those that all workers name."""
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
    """The box with these ends; None if it is the whole tensor."""
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


def _check_replicas(tensors: dict[str, StoredTensor], parts: Sequence[WrittenPart], ranks: Sequence[int]) -> None:
    for rank, part in zip(ranks, parts, strict=True):
        for key, ends, found in part.replicas:
            box = _box(ends, tensors[key].shape)
            written = next((block for block in tensors[key].blocks if block.box == box), None)
            if written is None or checksum(written.sums.encode()) != found:
                raise CheckpointMismatch(
                    f"the replica of {key!r} {ends or 'whole'} on worker {rank} differs from the block that its owner has.\n"
                    "  fix: replicas must be identical; `gridwise.nn.Broadcast` makes them so."
                )
