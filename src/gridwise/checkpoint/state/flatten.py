"""A state as flat keys: modules, optimisers, generators and nested dicts become tensors and plain values with names.

    {"model": net, "optim": adam, "step": 7, "rng": PerWorker(generator)}

    model/conv.weight                        a tensor, with this worker's share of it (`local_tensor`)
    optim/state/conv.weight/exp_avg          stored under the parameter's name, split as the parameter is
    optim/groups/#0/lr                       a value
    optim/kind                               its class: the state of one kind is of no use to another
    step                                     a value
    rng/@2                                   the tensor of worker 2

Everything here is local to one worker; `saving` compares it across the workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor

from ...errors import CheckpointMismatch
from ..format.values import DEEPEST, KEYS, Json, encoded, joined, joined_all, refusal
from .local_blocks import LocalBlock, LocalTensor, is_deferred, is_tensor, layout_of, local_plain, local_tensor
from .optimisers import block_of, first_owner, lies_like, names_of_parameters, parameter_names
from .per_worker import PerWorker
from .plain_tensors import Plain, plain_of


@dataclass
class Flat:
    """What this worker has to save.

    `tensors` and `values` must have the same names on all workers, and values the same contents. `own_tensors` and
    `own_values` are named only by the workers that have them. `per_worker` lists the keys of `PerWorker` values.
    `workers` is the original number of workers if others save it now (a conversion). `groups` are tensors that have no
    entries of their own yet. `tied` has the further names of tensors that stand in the state under several, each with its first
    name; `metadata` is what the user says about the state.
    """

    tensors: dict[str, LocalTensor] = field(default_factory=dict)
    values: dict[str, Json] = field(default_factory=dict)
    own_tensors: dict[str, LocalTensor] = field(default_factory=dict)
    own_values: dict[str, Json] = field(default_factory=dict)
    per_worker: list[str] = field(default_factory=list)
    workers: int | None = None
    groups: list[Group] = field(default_factory=list)
    tied: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Json] = field(default_factory=dict)

    def spell_out(self) -> None:
        """Turn groups of plain tensors into entries of `tensors` and `own_tensors`."""
        for prefix, plain, is_per_worker in self.groups:
            shares = zip(joined_all(prefix, plain.names), local_plain(plain, owned=is_per_worker), strict=True)
            (self.own_tensors if is_per_worker else self.tensors).update(shares)
        self.groups.clear()


class Group(NamedTuple):
    """Plain tensors of one dict, as columns without entries of their own; `is_per_worker`: inside a `PerWorker`."""

    prefix: str
    plain: Plain
    is_per_worker: bool


def flatten(
    state: object,
    rank: int = 0,
    place: int = 0,
    in_groups: bool = False,
    metadata: Mapping[str, object] | None = None,
) -> Flat:
    """The flat state of the worker with rank `rank` in the world, which is number `place` of those that save.

    With `in_groups`, dicts that hold only plain tensors are left as groups: that is fast, and enough for a copy.
    """
    check_state(state)
    walk = _StateFlattener(rank, place, state)
    walk.in_groups = in_groups
    walk.any("", state, 0)
    walk.flat.metadata = encoded_metadata(metadata)
    if "" in (*walk.flat.tensors, *walk.flat.values, *walk.flat.per_worker):
        raise CheckpointMismatch(
            f"`state` (a {type(state).__name__}) has no dict as its state, so there is no name to store it under.\n"
            "  fix: put it into a dict, {'name': state}."
        )
    if walk.asked_late:
        _check_places(walk.flat)
    return walk.flat


def encoded_metadata(metadata: Mapping[str, object] | None) -> dict[str, Json]:
    """What a user says about a state, as JSON."""
    if metadata is not None and not (isinstance(metadata, Mapping) and all(isinstance(name, str) for name in metadata)):
        raise CheckpointMismatch(f"`metadata` (={metadata!r:.100}) must be a dict with names.")
    return {name: encoded(value, f"metadata {name}") for name, value in (metadata or {}).items()}


def _check_places(flat: Flat) -> None:
    """Raise if a `state_dict()` call has moved a tensor whose address was recorded earlier."""
    parts = [part for tensors in (flat.tensors, flat.own_tensors) for x in tensors.values() for part in x.parts]
    places = [(part.data, part.address) for part in parts if part.address]
    places += [pair for group in flat.groups for pair in zip(group.plain.tensors, group.plain.addresses, strict=True)]
    if any(x.data_ptr() != address for x, address in places):
        raise CheckpointMismatch(
            "a `state_dict()` in the state moves the memory of tensors that stand before it in the state.\n"
            "  fix: call it first, and put what it gives into the state."
        )


def check_state(state: object) -> None:
    if not isinstance(state, dict) and not has_state(state):
        raise CheckpointMismatch(
            f"`state` (a {type(state).__name__}) must be a dict, a module, an optimiser, or anything else with `state_dict` "
            "and `load_state_dict`."
        )


class Stateful(Protocol):
    """An object that returns and loads its own state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


def has_state(value: object) -> TypeGuard[Stateful]:
    """Whether a value returns and loads its own state: modules, optimisers, schedulers, scalers, loaders."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


class _StateFlattener:
    """One pass over a state."""

    def __init__(self, rank: int, place: int, state: object) -> None:
        self.rank, self.place, self.state = rank, place, state
        self.flat = Flat()
        self.in_groups = False
        self.asked_late = False
        """Whether a `state_dict()` was called after addresses had been recorded."""
        self.in_per_worker = False
        """Inside a `PerWorker`: names and values are this worker's own."""
        self.seen: set[int] = set()
        """The tensors of the dicts and modules in `walked`, by their `id`, which is theirs as long as they are kept."""
        self.walked: list[tuple[str, Mapping[Any, Any]]] = []

    @cached_property
    def names(self) -> dict[int, str]:
        return names_of_parameters(self.state)

    def any(self, key: str, value: object, depth: int) -> None:
        if not self.asked_late and has_state(value):
            self.asked_late = bool(self.flat.groups or self.flat.tensors or self.flat.own_tensors)
        if is_tensor(value):
            self.tensor(key, value)
        elif depth > DEEPEST:
            raise CheckpointMismatch(
                f"{key!r} is nested deeper than {DEEPEST} levels, or holds itself: it cannot be saved."
            )
        elif isinstance(value, torch.nn.Module):
            self.items(key, value.state_dict(keep_vars=True), depth)
        elif isinstance(value, torch.optim.Optimizer):
            self.optimiser(key, value, depth)
        elif isinstance(value, PerWorker):
            self.per_worker(key, value, depth)
        elif isinstance(value, torch.Generator):
            self.tensor(key, value.get_state())
        elif isinstance(value, np.ndarray):
            self.tensor(key, from_numpy(value, key))
        elif has_state(value):
            self.any(key, value.state_dict(), depth + 1)
        elif isinstance(value, dict) and (value or not key):
            self.dict(key, value, depth)
        elif isinstance(value, list | tuple) and not is_plain(value):
            self.value(key, {"$list" if isinstance(value, list) else "$items": len(value)})
            for place, item in enumerate(value):
                self.any(joined(key, place), item, depth + 1)
        else:
            self.value(key, encoded(value, key))

    def dict(self, key: str, value: dict[Any, Any], depth: int) -> None:
        if not set(map(type, value)) <= KEYS:
            raise CheckpointMismatch(refusal(key, value))
        self.items(key, value, depth)

    def items(self, key: str, items: Mapping[Any, Any], depth: int) -> None:
        plain, others = plain_of(self.without_tied(key, items))
        if not others:
            self.flat.groups.append(Group(key, plain, self.in_per_worker))
            if not self.in_groups:
                self.flat.spell_out()
            return
        # Keep the order of the items: which of them are plain may differ between workers.
        shares = local_plain(plain, owned=self.in_per_worker)
        tensors = self.flat.own_tensors if self.in_per_worker else self.flat.tensors
        for name, item in items.items():
            if name in others:
                self.any(joined(key, name), item, depth + 1)
            elif joined(key, name) not in self.flat.tied:
                tensors[joined(key, name)] = next(shares)

    def without_tied(self, key: str, items: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """The items without the tensors that the state has under an earlier name already, which are noted as tied to it."""
        if self.in_per_worker:
            return items
        ids = [id(x) for x in items.values() if isinstance(x, Tensor)]
        is_usual = len(set(ids)) == len(ids) and self.seen.isdisjoint(ids)
        self.seen.update(ids)
        self.walked.append((key, items))
        if is_usual:
            return items
        first: dict[int, str] = {}
        for at, earlier in self.walked:
            for name, x in earlier.items():
                if isinstance(x, Tensor):
                    first.setdefault(id(x), joined(at, name))
        tied = {name: first[id(x)] for name, x in items.items() if isinstance(x, Tensor)}
        tied = {name: at for name, at in tied.items() if at != joined(key, name)}
        self.flat.tied.update({joined(key, name): at for name, at in tied.items()})
        return {name: x for name, x in items.items() if name not in tied}

    def value(self, key: str, value: Json) -> None:
        (self.flat.own_values if self.in_per_worker else self.flat.values)[key] = value

    def tensor(self, key: str, value: Tensor) -> None:
        if is_deferred(value):
            raise CheckpointMismatch(
                f"{key!r} has no values yet: it is deferred.\n  fix: materialise the module before saving."
            )
        if not self.in_per_worker:
            self.flat.tensors[key] = local_tensor(value, key, self.rank)
            return
        if layout_of(value) is not None:
            raise CheckpointMismatch(f"{key!r} is split over the workers and cannot be inside a PerWorker.")
        share = local_tensor(value, key, self.rank)
        parts = [LocalBlock(part.box, part.data, True) for part in share.parts]
        self.flat.own_tensors[key] = LocalTensor(share.code, share.shape, parts)

    def per_worker(self, key: str, value: PerWorker, depth: int) -> None:
        if self.in_per_worker:
            raise CheckpointMismatch(f"{key!r} is a PerWorker inside a PerWorker: one is enough.")
        self.flat.per_worker.append(key)
        self.in_per_worker = True
        self.any(f"{key}/@{self.place}" if key else f"@{self.place}", value.value, depth + 1)
        self.in_per_worker = False

    # Optimisers

    def optimiser(self, key: str, optimiser: torch.optim.Optimizer, depth: int) -> None:
        names = parameter_names(optimiser, self.names, key or "state")
        self.value(joined(key, "kind"), type(optimiser).__name__)
        for place, (group, group_names) in enumerate(zip(optimiser.param_groups, names, strict=True)):
            at = joined(key, "groups", place)
            self.value(joined(at, "params"), group_names)
            for option, item in group.items():
                if option not in ("params", "param_names"):
                    self.any(joined(at, option), item, depth + 1)
            for name, parameter in zip(group_names, group["params"], strict=True):
                state = optimiser.state.get(parameter, {})
                self.state_of(joined(key, "state", name), block_of(optimiser, parameter), state, depth)

    def state_of(self, key: str, parameter: Tensor, state: Mapping[str, Any], depth: int) -> None:
        layout = layout_of(parameter)
        if layout is None:
            for name, item in state.items():
                self.any(joined(key, name), item, depth + 1)
            return
        # Only workers that hold a part of a split parameter have a state for it, so it is their own.
        share = local_tensor(parameter, key, self.rank)
        if not share.parts:
            return
        first = first_owner(layout) == self.rank
        for name, item in state.items():
            at = joined(key, name)
            if lies_like(item, parameter):
                (part,) = share.parts
                like = local_tensor(item, at, self.rank)
                self.flat.own_tensors[at] = LocalTensor(
                    like.code, share.shape, [LocalBlock(part.box, item.detach(), part.owned)]
                )
            elif isinstance(item, Tensor):
                like = local_tensor(item, at, self.rank)
                self.flat.own_tensors[at] = LocalTensor(like.code, like.shape, [LocalBlock(None, item.detach(), first)])
            elif first:
                self.flat.own_values[at] = encoded(item, at)


def is_plain(value: object, depth: int = 0) -> bool:
    """Whether a value holds no tensor and nothing that has a state of its own."""
    if depth > DEEPEST:
        return True  # refused when it is encoded, with the key in the message
    if isinstance(value, dict):
        return all(is_plain(item, depth + 1) for item in value.values())
    if isinstance(value, list | tuple):
        return all(is_plain(item, depth + 1) for item in value)
    return not (is_tensor(value) or isinstance(value, PerWorker | torch.Generator | np.ndarray) or has_state(value))


def check_array(value: np.ndarray, key: str) -> None:
    """Raise for a masked array, which is more than its data."""
    if isinstance(value, np.ma.MaskedArray):
        raise CheckpointMismatch(
            f"{key!r} is a masked array, of which only the data would be kept.\n"
            "  fix: its `.data` and its `.mask`, two arrays."
        )


def from_numpy(value: np.ndarray, key: str) -> Tensor:
    check_array(value, key)
    try:
        usable = value.flags.writeable and value.flags.c_contiguous
        return torch.from_numpy(value if usable else value.copy(order="C"))
    except TypeError as error:
        raise CheckpointMismatch(f"{key!r} is an array that torch cannot hold: {error}") from None
