"""Plan how a checkpoint fills a state: which stored boxes go into which memory, and what is set afterwards.

Everything in `into` must be in the checkpoint, with the same shape and dtype; what else the checkpoint has is ignored,
except inside a module or an optimiser, where an extra name is an error.

| in `into` | gets |
|---|---|
| a tensor, an array, a parameter, a shard | its values, in place: this worker's block of the stored tensor |
| a module | all its parameters and buffers, in place; of deferred ones only the local block is made, uninitialised |
| an optimiser | the options of its groups, and the state of each parameter by name |
| a generator, a scheduler, anything with `load_state_dict` | its state |
| a dict | each of its keys; a nested dict of only plain values is replaced by all that was saved under it |
| a list or tuple with tensors in it | each of its items; their number must be the same |
| any other value | replaced by what was saved under its key |

Nothing is changed while the plan is made. Its `finish` steps run when all bytes are in place.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import setitem
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import CheckpointMismatch
from ...log import logger
from ..format.manifest import Manifest
from ..format.values import DEEPEST, joined, joined_all
from ..state.flatten import check_array, check_state, has_state, is_plain
from ..state.local_blocks import (
    dtype_of,
    in_place_of,
    is_deferred,
    is_tensor,
    layout_of,
    local_tensor,
    materialize_rest,
    of_the_same_kind,
    on_this_worker,
)
from ..state.per_worker import PerWorker
from ..state.plain_tensors import plain_of
from .chunk_reads import Want
from .load_plan import ReadPlan, listed
from .optimisers import OptimiserPlanner


def plan_load(manifest: Manifest, into: object, rank: int, place: int, workers: int, cast: bool) -> ReadPlan:
    """The plan by which worker `rank`, number `place` of `workers`, fills `into` (None: a new nested dict of all)."""
    walk = _StatePlanner(manifest, into, rank, place, workers, cast)
    if into is None:
        walk.plan.result = walk.everything("")
        return walk.plan
    check_state(into)
    if isinstance(into, dict):
        walk.mapping("", into, 0)
    else:
        walk.any("", into, lambda _: None, 0)
    if any(want.address and want.target.data_ptr() != want.address for want in walk.plan.wants):
        raise CheckpointMismatch("a `state_dict()` in `into` moves the memory of tensors that stand before it.")
    walk.plan.result = into
    return walk.plan


class _StatePlanner(OptimiserPlanner):
    """One pass over the state that is to be filled."""

    # Values of any kind

    def any(self, key: str, value: object, put: Callable[[Any], None], depth: int) -> None:
        if depth > DEEPEST:
            raise CheckpointMismatch(f"{key!r} of `into` is nested deeper than {DEEPEST} levels, or holds itself.")
        if is_tensor(value):
            self.tensor(key, value, put)
        elif isinstance(value, torch.nn.Module):
            self.module(key, value, depth)
        elif isinstance(value, torch.optim.Optimizer):
            self.optimiser(key, value)
        elif isinstance(value, PerWorker):
            self.per_worker(key, value, depth)
        elif isinstance(value, torch.Generator):
            self.later(value.set_state, self.new_tensor(key))
        elif isinstance(value, np.ndarray):
            self.array(key, value, put)
        elif has_state(value):
            self.later(value.load_state_dict, _as_before(value.state_dict(), self.everything(key)))
        elif isinstance(value, dict) and not is_plain(value):
            self.mapping(key, value, depth)
        elif isinstance(value, list | tuple) and not is_plain(value):
            self.items(key, value, put, depth)
        else:
            self.later(put, _as_before(value, self.everything(key)))

    def mapping(self, key: str, value: dict[Any, Any], depth: int) -> None:
        for name, item in self.plan_plain_tensors(key, value).items():
            self.any(joined(key, name), item, partial(setitem, value, name), depth + 1)

    def plan_plain_tensors(self, key: str, items: Mapping[Any, Any]) -> dict[Any, Any]:
        """Plan the plain tensors among the items in one pass, and return the other items."""
        plain, others = plain_of(items)
        columns = joined_all(key, plain.names), plain.tensors, plain.addresses, plain.codes, plain.shapes
        tensors, wants, checked = self.manifest.tensors, self.plan.wants, self.manifest.files_of is None
        for at, x, address, code, shape in zip(*columns, strict=True):
            stored = tensors.get(at)
            if stored is None or stored.code != code or stored.shape != shape or len(stored.blocks) != 1:
                self.tensor(at, x, lambda _: None)
            else:
                wants.append(Want(at, stored, x, None, False, address, checked))
        return others

    def items(self, key: str, value: list[Any] | tuple[Any, ...], put: Callable[[Any], None], depth: int) -> None:
        found = self.below(key)
        length = len(found.children) if found is not None and found.kind in (list, tuple) else None
        if length != len(value):
            raise CheckpointMismatch(
                f"{key!r} has {len(value)} items in `into`, "
                + ("and is no list in the checkpoint." if length is None else f"{length} in the checkpoint.")
            )
        items = list(value)
        for place, item in enumerate(value):
            self.any(joined(key, place), item, partial(setitem, items, place), depth + 1)
        if isinstance(value, list):
            self.plan.finish.append(lambda: value.__setitem__(slice(None), items))
        else:
            self.plan.finish.append(lambda: put(tuple(items)))

    def per_worker(self, key: str, value: PerWorker, depth: int) -> None:
        count = self.manifest.per_worker.get(key)
        if count is None:
            if self.below(key) is None:
                raise self.missing(key)
            raise CheckpointMismatch(f"{key!r} is a PerWorker in `into`, but was saved as one value for all workers.")
        place = self.place
        if count != self.workers:
            if value.when_resized == "refuse":
                raise CheckpointMismatch(
                    f"{key!r} was saved by {count} workers, one value each, and is loaded by {self.workers}.\n"
                    "  fix: PerWorker(value, when_resized='keep') leaves every worker what it has, 'wrap' gives worker i that "
                    "of worker i modulo the saved number."
                )
            if value.when_resized == "keep":
                logger.warning(
                    "%r was saved by %d workers, here are %d: every worker keeps its own", key, count, self.workers
                )
                return
            place %= count
        below = f"{key}/@{place}" if key else f"@{place}"
        self.any(below, value.value, partial(setattr, value, "value"), depth + 1)

    # Tensors

    def tensor(self, key: str, value: Tensor, put: Callable[[Any], None]) -> None:
        if is_deferred(value):
            if id(value) not in self._made:
                self._made[id(value)] = self.deferred(key, value)
            made = self._made[id(value)]
            self.plan.finish.append(lambda: put(in_place_of(value, made)))
            return
        stored = self.stored(key)
        share = local_tensor(value, key, self.rank)
        if share.shape != stored.shape or share.code != stored.code:  # inline for speed: most tensors fit
            self.check_fits(key, stored, share.shape, dtype_of(value))
        for part in share.parts:
            self.want(key, stored, part.data, part.box, fresh=False)

    def array(self, key: str, value: np.ndarray, put: Callable[[Any], None]) -> None:
        check_array(value, key)
        stored = self.stored(key)
        if value.flags.writeable and value.flags.c_contiguous:
            target = torch.from_numpy(value)
            self.check_fits(key, stored, tuple(target.shape), target.dtype)
            self.want(key, stored, target, None, fresh=False)
        else:
            self.later(lambda new: put(new.numpy()), self.new_tensor(key))

    def deferred(self, key: str, value: Tensor) -> Tensor:
        """A real tensor in place of one without memory: only this worker's block, uninitialised, to be read into."""
        stored = self.stored(key)
        layout = layout_of(value)
        self.check_fits(key, stored, tuple(value.shape) if layout is None else layout.global_shape, value.dtype)
        box, shape = on_this_worker(value, key, self.rank)
        device = torch.device("cpu") if value.device.type == "meta" else value.device
        data = torch.empty(shape, dtype=value.dtype, device=device)
        if math.prod(shape):
            self.want(key, stored, data, box, fresh=True)
        return of_the_same_kind(value, data)

    # Modules

    def module(self, key: str, module: torch.nn.Module, depth: int) -> None:
        if self.is_single_module(key):
            key = ""
        names = self.without_tied(key, module.state_dict(keep_vars=True))
        self.check_names(key, (joined(key, name) for name in names), f"the {type(module).__name__}")
        own = {id(x) for part in module.modules() for x in (*part._parameters.values(), *part._buffers.values())}
        copies = [
            name for name, x in names.items() if id(x) not in own and is_tensor(x) and not name.endswith("_extra_state")
        ]
        if copies:
            raise CheckpointMismatch(
                f"the {type(module).__name__} at {key or 'the top'!r} gives copies of {listed(copies)} as its state (a "
                "hook, or a `state_dict` of its own): filling these would not fill the module.\n"
                "  fix: load without `into`, and hand the result to its `load_state_dict`."
            )
        for name, item in self.plan_plain_tensors(key, names).items():
            owner, last = module, name
            if "." in name:
                way, last = name.rsplit(".", 1)
                owner = module.get_submodule(way)
            if last == "_extra_state":
                self.later(owner.set_extra_state, _as_before(item, self.everything(joined(key, name))))
            else:
                self.any(joined(key, name), item, partial(setattr, owner, last), depth + 1)
        self.plan.finish.append(partial(materialize_rest, module))

    def is_single_module(self, key: str) -> bool:
        """Whether the checkpoint is the state of a single module, saved without the key under which `into` has it.

        That needs `key` to be the only one in `into`: the checkpoint cannot be two modules.
        """
        if not isinstance(self.into, dict) or list(self.into) != [key] or key in self.tree.children:
            return False
        return all(child.kind is None for child in self.tree.children.values())

    def without_tied(self, key: str, names: Mapping[str, Any]) -> dict[str, Any]:
        """The names of a module, without those that are missing while their tensor is stored under another name.

        Other programs store tied parameters only once.
        """
        tensors = self.manifest.tensors
        stored = {id(x) for name, x in names.items() if is_tensor(x) and joined(key, name) in tensors}
        return {name: x for name, x in names.items() if id(x) not in stored or joined(key, name) in tensors}

    def check_names(self, key: str, wanted: Iterable[str], what: str) -> None:
        expected = set(wanted)
        prefix = f"{key}/" if key else ""
        stored = {name for name in (*self.manifest.tensors, *self.manifest.values) if name.startswith(prefix)}
        missing = sorted(name for name in expected - stored if self.below(name) is None)
        extra = sorted(name for name in stored - expected if expected.isdisjoint(_ancestors(name)))
        if missing or extra:
            lines = [f"only in `into`: {listed(missing)}"] if missing else []
            lines += [f"only in the checkpoint: {listed(extra)}"] if extra else []
            heads = sorted({name.partition("/")[0] for name in extra}) if not key else []
            below = next((head for head in heads if all(f"{head}/{name}" in stored for name in expected)), None)
            fix = f"it was saved below {below!r}: load(path, into={{{below!r}: ...}})." if below else ""
            raise CheckpointMismatch(f"{what} at {key or 'the top'!r} does not fit the checkpoint.", lines, fix)


def _as_before(before: object, saved: object) -> Any:
    """`saved`, with dicts of the same types as in `before`: a Counter stays a Counter."""
    if isinstance(before, dict) and isinstance(saved, dict):
        inner = {name: _as_before(before.get(name), item) for name, item in saved.items()}
        if type(before) is dict:
            return inner
        same = copy.copy(before)
        same.clear()
        same.update(inner)
        return same
    return saved


def _ancestors(key: str) -> Iterator[str]:
    """The keys above a key, nearest first."""
    end = key.rfind("/")
    while end > 0:
        yield key[:end]
        end = key.rfind("/", 0, end)
