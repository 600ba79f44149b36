"""The manifest of what all workers have written: their lines joined, the rest compared and put together.

A tensor is in one line if one worker alone names it, or everybody holds it, and one has written it whole. All others are
spelt out: blocks must fill them, copies must be equal, and workers that name them must agree about what they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from operator import add

from ...errors import CheckpointError, CheckpointMismatch
from ...grid import Box, Shape
from ...version import __version__
from ..format.chunks import checksum
from ..format.manifest import Manifest, StoredBlock, StoredTensor, bytes_of_lines, quoted, rest_of
from ..format.tiling import tiling_problem
from ..state.flatten import Flat
from .manifest_lines import WorkerLines
from .write_shares import Shares, writer_of_whole

Rests = dict[str, str]
"""Name as JSON has it -> the rest of its line; nothing for a tensor that has to be spelt out."""


def assembled(save_id: str, parts: Sequence[WorkerLines], flat: Flat, shares: Shares, workers: int) -> bytes:
    """The manifest of the parts that all workers have written, as it is to be stored."""
    claims = [_shared_rests(parts, flat, shares), *map(_own_rests, parts)]
    rests: Rests = {}
    several: set[str] = set()
    for claim in claims:
        several |= rests.keys() & claim.keys()
        rests.update(claim)
    odd = several.union(name for name, rest in rests.items() if not rest)
    spelt_out = _spelt_out(odd, claims, parts, flat)
    _check_whole(spelt_out)
    _check_replicas(spelt_out, parts)
    rests.update((quoted(key), rest_of(tensor)) for key, tensor in spelt_out.items())
    manifest = Manifest(
        save_id,
        flat.workers or workers,
        tuple(part.file for part in parts if part.file is not None),
        {},
        dict(chain(flat.values.items(), *(part.values.items() for part in parts))),
        dict.fromkeys(flat.per_worker, flat.workers or workers),
        f"gridwise {__version__}",
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return bytes_of_lines(manifest, map(add, rests.keys(), rests.values()))


def _shared_rests(parts: Sequence[WorkerLines], flat: Flat, shares: Shares) -> Rests:
    """The lines of the tensors that everybody names, each as the worker has it that has written it whole."""
    writers = {key: writer for key, blocks in shares.items() if (writer := writer_of_whole(blocks)) is not None}
    counts = Counter(writers.values())
    for place, part in enumerate(parts):
        if len(part.shared) != counts[place]:
            raise CheckpointError(
                f"worker {place} has written {len(part.shared)} of the tensors that all hold, not {counts[place]}."
            )
    each = [iter(part.shared) for part in parts]
    found = {key: next(each[writer]) for key, writer in writers.items()}
    return {quoted(key): found.get(key, "") for key in flat.tensors}


def _own_rests(part: WorkerLines) -> Rests:
    rests = dict(zip(part.names, part.rests, strict=True))
    if len(rests) < len(part.names):
        raise CheckpointError("a worker names a tensor of its own twice.")
    return rests


def _spelt_out(
    odd: set[str], claims: Sequence[Rests], parts: Sequence[WorkerLines], flat: Flat
) -> dict[str, StoredTensor]:
    """The tensors with these names, of all blocks that anybody has written."""
    known: dict[str, tuple[str, Shape]] = {}
    blocks: dict[str, list[StoredBlock]] = {}

    def tell(key: str, code: str, shape: Sequence[int]) -> None:
        if known.setdefault(key, (code, tuple(shape))) != (code, tuple(shape)):
            raise CheckpointMismatch(f"{key!r} is {known[key]} on one worker and {(code, tuple(shape))} on another.")

    for key, x in flat.tensors.items() if odd else ():
        if quoted(key) in odd:
            tell(key, x.code, x.shape)
    for claim in claims:
        for name, rest in claim.items() if odd else ():
            if rest and name in odd:
                key, (code, shape, [[file, offset, sums]]) = json.loads(f"[{name},{rest[1:]}]")
                tell(key, code, shape)
                blocks.setdefault(key, []).append(StoredBlock(file, offset, sums, None))
    number = 0
    for part in parts:
        for key, (code, shape) in part.own.items():
            tell(key, code, shape)
        for key, ends, offset, sums in part.blocks:
            box = _box(ends, known[key][1])
            blocks.setdefault(key, []).append(StoredBlock(number, offset, sums, box))
        number += part.file is not None
    return {key: StoredTensor(code, shape, tuple(blocks.get(key, ()))) for key, (code, shape) in known.items()}


def _box(ends: Sequence[Sequence[int]] | None, shape: Shape) -> Box | None:
    """A box that was told; None if it is the whole of the tensor."""
    box = None if ends is None else Box(*map(tuple, ends))
    return None if box == Box.of_shape(shape) else box


def _check_whole(tensors: dict[str, StoredTensor]) -> None:
    for key, tensor in tensors.items():
        problem = tiling_problem(tensor.shape, tensor.boxes())
        if problem is not None:
            raise CheckpointMismatch(
                f"the blocks of {key!r} that the workers hold {problem}.\n"
                "  fix: every worker of the layout must be among those that save (`P`)."
            )


def _check_replicas(tensors: dict[str, StoredTensor], parts: Sequence[WorkerLines]) -> None:
    for place, part in enumerate(parts):
        for key, ends, found in part.replicas:
            box = _box(ends, tensors[key].shape)
            written = next((block for block in tensors[key].blocks if block.box == box), None)
            if written is None or checksum(written.sums.encode()) != found:
                raise CheckpointMismatch(
                    f"the replica of {key!r} {ends or 'whole'} on worker {place} differs from the block that its owner has.\n"
                    "  fix: replicas must be identical; `gridwise.nn.Broadcast` makes them so."
                )
