"""What a worker tells the first one about its part of a save: the blocks that it has written, and what it only holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ...grid import Box
from ..format.chunks import checksum
from ..format.data_file import Written, sums_of
from ..format.manifest import StoredFile
from ..state.flatten import Flat
from .write_shares import Shares, block_of, same_sums


@dataclass
class WrittenPart:
    """One worker's part of a save."""

    file: StoredFile | None
    own: dict[str, Any]
    """Dtypes and shapes of its own tensors."""
    blocks: list[Any]
    """What it has written: key, ends (None: the whole), offset and checksums of each block."""
    values: dict[str, Any]
    same: str
    """One checksum for each tensor that everybody holds, in the order of the shares."""
    replicas: list[Any]
    """Blocks that lie here and are written by others: key, ends, one checksum of each."""

    def to_bytes(self) -> bytes:
        fields = self.file, self.own, self.blocks, self.values, self.same, self.replicas
        return json.dumps(fields, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> WrittenPart:
        file, *others = json.loads(data)
        return cls(None if file is None else StoredFile(*file), *others)


def written_part(flat: Flat, shares: Shares, place: int, workers: int, written: Written | None) -> WrittenPart:
    """What the worker at `place` tells when it has written these blocks."""
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
