"""What a worker tells the first one about its part of a save: mostly lines of the manifest, all but finished.

    "loader/@1/weight":["F32",[8,8],[[?,272,"5c1d0000aaaabbbb"]]]
    name              rest

All others wait while the first worker puts the manifest together. So each worker prepares the lines of the tensors that
it has written whole, in one block, which most are, and the first worker joins them (`manifest_assembly`). What has
blocks on several workers, or copies there, is told block by block, and compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import CheckpointError
from ...grid import Box, Shape
from ..format.chunks import checksum
from ..format.data_file import Block, Written, sums_of
from ..format.manifest import StoredFile, compact, quoted, rest_of_whole
from ..state.flatten import Flat
from .write_shares import Shares, block_of, same_sums, writer_of_whole

NUMBER = "\0"
"""Stands for the number of a worker's file, which depends on who else has one. JSON has no such character."""


@dataclass
class WorkerLines:
    """One worker's part of a save."""

    file: StoredFile | None
    names: list[str]
    """Of its own tensors, as JSON has them."""
    rests: list[str]
    """For each of these, the rest of its line; nothing if it is not written here, whole and in one block."""
    shared: list[str]
    """The same for the tensors that everybody holds and this worker writes whole, in the order of the shares."""
    own: dict[str, Any]
    """Dtypes and shapes of its own tensors that have no line."""
    blocks: list[Any]
    """Blocks of tensors that have no line: key, ends, offset and checksums."""
    values: dict[str, Any]
    same: str
    """One checksum for each tensor that everybody holds, in the order of the shares."""
    replicas: list[Any]
    """Blocks that lie here and are written by others: key, ends, one checksum of each."""

    def to_bytes(self) -> bytes:
        """A line of JSON, then the lines."""
        columns = self.names, self.rests, self.shared
        said = list(map(len, columns)), self.file, self.own, self.blocks, self.values, self.same, self.replicas
        lines = [json.dumps(said, separators=(",", ":")), *self.names, *self.rests, *self.shared]
        return "\n".join(lines).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes, number: int) -> WorkerLines:
        """What was told by a worker whose file, if it has one, is number `number`."""
        head, *lines = data.decode("ascii").replace(NUMBER, str(number)).split("\n")
        (own, _, shared), file, *others = json.loads(head)
        if len(lines) != own + own + shared:
            raise CheckpointError(f"a worker announced {own + own + shared} lines, and sent {len(lines)}.")
        stored = None if file is None else StoredFile(*file)
        return cls(stored, lines[:own], lines[own : 2 * own], lines[2 * own :], *others)


def worker_lines(flat: Flat, shares: Shares, place: int, workers: int, written: Written | None) -> WorkerLines:
    """What the worker at `place` tells when it has written these blocks."""
    placed = written.blocks if written else []
    rests = _rests(placed, "0" if place == 0 else NUMBER)
    known = {(block.key, place): sums for block, _, sums in placed} if workers > 1 and shares else {}
    return WorkerLines(
        file=written.file if written else None,
        names=list(map(quoted, flat.own_tensors)),
        rests=[rests.get(key, "") for key in flat.own_tensors],
        shared=[rests[key] for key, blocks in shares.items() if writer_of_whole(blocks) == place],
        own={key: [x.code, list(x.shape)] for key, x in flat.own_tensors.items() if key not in rests},
        blocks=[[block.key, _ends(block.box), at, sums] for block, at, sums in placed if block.box is not None],
        values=flat.own_values,
        same=same_sums(flat, shares, known) if workers > 1 else "",
        replicas=_replicas(flat) if workers > 1 else [],
    )


def _rests(placed: Iterable[tuple[Block, int, str]], number: str) -> dict[str, str]:
    """The rests of the lines of tensors that are whole in one block."""
    shapes: dict[Shape, str] = {}
    rests = {}
    for (key, code, box, shape, _, _, _), offset, sums in placed:
        if box is None:
            text = shapes.get(shape) or shapes.setdefault(shape, compact(list(shape)))
            rests[key] = rest_of_whole(code, text, number, offset, sums)
    return rests


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
