"""Match a state with a checkpoint: look up keys, and plan which boxes go into which memory.

`restore` walks over the state and calls this; nothing is read or changed before the whole plan is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointDamaged, CheckpointMismatch
from ...grid import Box
from ..consensus import MOST_NAMED
from ..format.manifest import Manifest, StoredTensor
from ..format.values import decoded, unescaped
from ..state.key_tree import KeyNode, find, tree_of
from ..state.optimisers import names_of_parameters
from . import available_memory
from .chunk_reads import Want
from .shared_memory_targets import overlaps_itself


@dataclass
class ReadPlan:
    """What to read, and what to do once that is in place."""

    wants: list[Want] = field(default_factory=list)
    finish: list[Callable[[], object]] = field(default_factory=list)
    result: object = None


class LoadPlanner:
    """How worker `rank`, which is number `place` of the `workers` that load, fills `into` from a checkpoint."""

    def __init__(
        self, manifest: Manifest, into: object, rank: int, place: int, workers: int, cast: bool, strict: bool = True
    ) -> None:
        self.manifest, self.into, self.cast, self.strict = manifest, into, cast, strict
        self.rank, self.place, self.workers = rank, place, workers
        self.plan = ReadPlan()
        self.made: dict[int, Tensor] = {}
        self._new_bytes = 0
        self.missing_names: list[str] = []
        """What `into` has and the checkpoint lacks, if that may be."""
        self.used: set[str] = set()
        """What is taken from the checkpoint; a key stands for all below it."""
        self.list_lengths: set[str] = set()
        """The lists whose items are taken one by one: their own entries say how long they are."""

    @cached_property
    def names(self) -> dict[int, str]:
        """The names of all parameters in `into`, by their `id`."""
        return names_of_parameters(self.into)

    # The checkpoint as a tree

    @cached_property
    def tree(self) -> KeyNode:
        return tree_of(self.manifest)

    def below(self, key: str) -> KeyNode | None:
        return find(self.tree, key)

    def skips(self, key: str) -> bool:
        """Whether what stands at `key` of `into` stays as it is, because the checkpoint lacks it."""
        if self.strict or self.below(key) is not None:
            return False
        self.missing_names.append(key)
        return True

    def left_out(self) -> list[str]:
        """What the checkpoint has and nothing takes."""
        keys = [key for key in (*self.manifest.tensors, *self.manifest.values) if key not in self.list_lengths]
        return unused_of(keys, self.used | {want.key for want in self.plan.wants})

    def everything(self, key: str) -> Any:
        """New memory for all that was saved below `key`, nested as it was; to be filled when the plan is read."""
        self.used.add(key)
        found = self.below(key)
        if found is None:
            raise self.missing(key)
        return self.built(found)

    def built(self, node: KeyNode) -> Any:
        if node.kind is None:
            return self.leaf(node.key)
        if node.key in self.manifest.per_worker:
            counted = range(self.manifest.per_worker[node.key])
            if node.children.keys() != {f"@{place}" for place in counted}:
                raise CheckpointDamaged(f"{node.key!r} does not have one value for each worker.")
            return [self.built(node.children[f"@{place}"]) for place in counted]
        if node.kind is dict:
            return {name_of(name, node.key): self.built(child) for name, child in node.children.items()}
        return node.kind(self.built(child) for child in node.items())

    def leaf(self, key: str) -> Any:
        return self.new_tensor(key) if key in self.manifest.tensors else decoded(self.manifest.values[key])

    # What is wanted

    def later(self, put: Callable[[Any], object], value: object) -> None:
        self.plan.finish.append(partial(put, value))

    def stored(self, key: str) -> StoredTensor:
        self.used.add(key)
        stored = self.manifest.tensors.get(key)
        if stored is None:
            if key in self.manifest.values:
                raise CheckpointMismatch(f"{key!r} is a tensor in `into`, but a plain value in the checkpoint.")
            raise self.missing(key)
        return stored

    def missing(self, key: str) -> CheckpointMismatch:
        near = [name for name in (*self.manifest.tensors, *self.manifest.values) if _near(name, key)]
        return CheckpointMismatch(f"{key!r} is not in the checkpoint.", fix=f"it has {listed(near)}." if near else "")

    def new_tensor(self, key: str) -> Tensor:
        stored = self.stored(key)
        self._new_bytes += stored.nbytes
        available_memory.check_new(self._new_bytes)
        target = torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
        self.want(key, stored, target, None, fresh=True)
        return target

    def check_fits(self, key: str, stored: StoredTensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        if stored.shape != shape:
            raise CheckpointMismatch(
                f"{key!r} has the global shape {list(stored.shape)} in the checkpoint, {list(shape)} in `into`.\n"
                "  fix: build `into` as what was saved; `gridwise checkpoint show` lists all shapes. Or leave it out: "
                f"load(..., rename={{{key!r}: None}}, strict=False)."
            )
        if stored.dtype != dtype and not self.cast:
            raise CheckpointMismatch(
                f"{key!r} is {stored.dtype} in the checkpoint, {dtype} in `into`.\n"
                "  fix: load(..., cast=True) converts, with rounding; or change the dtype of `into`."
            )
        if stored.dtype != dtype and torch.float4_e2m1fn_x2 in (stored.dtype, dtype):
            raise CheckpointMismatch(
                f"{key!r} is {stored.dtype} in the checkpoint, {dtype} in `into`, and torch converts no float4.\n"
                "  fix: an `into` of the stored dtype."
            )

    def want(self, key: str, stored: StoredTensor, target: Tensor, box: Box | None, fresh: bool) -> None:
        if not target.numel():
            return
        if not fresh and overlaps_itself(target):
            raise CheckpointMismatch(
                f"{key!r} of `into` is expanded, or strided so that several elements share one place: it cannot be filled.\n"
                "  fix: give it memory of its own (`.clone()`)."
            )
        self.plan.wants.append(Want(key, stored, target, box, fresh, checked=self.manifest.files_of is None))


def name_of(part: str, key: str) -> str | int:
    try:
        return unescaped(part)
    except ValueError:
        raise CheckpointDamaged(f"{key!r} holds {part!r}, which is no name.") from None


def _near(name: str, key: str) -> bool:
    last = key.rsplit("/", 1)[-1].rsplit(".", 1)[-1]
    return name.endswith(last) or name.startswith(key + "/")


def listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:MOST_NAMED]))
    return f"{shown}, ... ({len(names)} in all)" if len(names) > MOST_NAMED else shown or "none"


def unused_of(keys: Iterable[str], used: set[str]) -> list[str]:
    """The keys that are not used, and not below one that is."""

    def is_used(key: str) -> bool:
        while key not in used and "/" in key:
            key = key.rpartition("/")[0]
        return key in used

    return [key for key in keys if not is_used(key)] if "" not in used else []
