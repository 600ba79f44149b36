"""Check that all workers hold the same names, dtypes, global shapes and plain values, by one hash per worker.

The hash of ten thousand tensors is computed from columns, without a description of each. Only if the hashes differ does
every worker list what it holds, and the error names the first differences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash

from ...errors import CheckpointMismatch, describe
from ..consensus import MOST_NAMED, Consensus
from ..format.chunks import checksum
from ..store_path import Place
from .flatten import Flat


def check_alike(consensus: Consensus, path: Place, flat: Flat) -> None:
    """Raise on all workers, with the first differences, unless all hold the same state and save it to one path."""
    consensus.check_one_path(path, lambda given: given.name)
    everyone = consensus.gather_json(_listing(flat))
    if any(list(listing.items()) != list(everyone[0].items()) for listing in everyone):
        raise CheckpointMismatch(_disagreement(consensus.what, dict(zip(consensus.team, everyone, strict=True))))


def number_of(flat: Flat, path: Place) -> int:
    """A 63-bit hash of all that must be the same; of the path only its name, as workers may reach it differently."""
    all_tensors = flat.tensors.values()
    tensors = [
        list(flat.tensors),
        *([getattr(x, name) for x in all_tensors] for name in ("code", "shape", "everywhere")),
    ]
    groups = [
        (prefix, plain.names, plain.numbers, plain.kinds)
        for prefix, plain, is_per_worker in flat.groups
        if not is_per_worker
    ]
    text = json.dumps([flat.values, flat.per_worker, path.name, tensors, groups, flat.tied, flat.metadata])
    return int(xxhash.xxh3_64_intdigest(text.encode()) >> 1)


def _listing(flat: Flat) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, x in flat.tensors.items():
        shown[key] = f"a tensor {x.code} {list(x.shape)}{' on every worker' if x.everywhere else ' in blocks'}"
    shown |= {key: f"the tensor {first!r}" for key, first in flat.tied.items()}
    for key, value in (*flat.values.items(), *((f"metadata {name}", item) for name, item in flat.metadata.items())):
        text = json.dumps(value)
        shown[key] = f"the value {text}" if len(text) <= 60 else f"the value {text[:40]}... ({checksum(text.encode())})"
    for key in flat.per_worker:
        shown[key] = "a PerWorker"
    return shown


def _disagreement(what: str, everyone: dict[int, dict[str, str]]) -> str:
    first, lines = differences(everyone)
    if first is None:
        return f"{what}: the workers hold the same, but in different orders: build the state alike on all of them."
    return describe(
        f"{what}: the workers hold different states, the first difference is {first!r}.",
        lines,
        "what lies on one worker only goes into `checkpoint.PerWorker(value)`; a block of a global tensor needs its "
        "`.placement`: save the module itself, or `module.state_dict(keep_vars=True)`.",
    )


def differences(everyone: Mapping[int, Mapping[str, str]]) -> tuple[str | None, list[str]]:
    """The first key in which workers (by rank) differ, and lines that show what each has for the first few of them."""
    keys = dict.fromkeys(key for listing in everyone.values() for key in listing)
    wrong = [key for key in keys if len({listing.get(key) for listing in everyone.values()}) > 1]
    lines = []
    for key in wrong[:MOST_NAMED]:
        groups: dict[str | None, list[int]] = {}
        for rank, listing in everyone.items():
            groups.setdefault(listing.get(key), []).append(rank)
        for text, ranks in groups.items():
            who = f"worker{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{', ...' * (len(ranks) > 8)}"
            lines.append(f"{key!r} on {who}: {text or 'is missing'}")
    if len(wrong) > MOST_NAMED:
        lines.append(f"... and {len(wrong) - MOST_NAMED} more keys")
    return next(iter(wrong), None), lines
