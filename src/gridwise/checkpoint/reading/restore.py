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
from .load_plan import LoadPlanner, ReadPlan, listed
from .optimisers import plan_optimiser
from .renaming import LoadReport


def plan_load(
    manifest: Manifest, into: object, rank: int, place: int, workers: int, cast: bool, strict: bool = True
) -> ReadPlan:
    """The plan by which worker `rank`, number `place` of `workers`, fills `into` (None: a new nested dict of all)."""
    load = LoadPlanner(manifest, into, rank, place, workers, cast, strict)
    if into is None:
        made = load.everything("")
        load.plan.result = made if strict else LoadReport(made, (), ())
        return load.plan
    check_state(into)
    if isinstance(into, dict):
        _mapping(load, "", into, 0)
    else:
        _fill(load, "", into, lambda _: None, 0)
    if any(want.address and want.target.data_ptr() != want.address for want in load.plan.wants):
        raise CheckpointMismatch("a `state_dict()` in `into` moves the memory of tensors that stand before it.")
    load.plan.result = into if strict else LoadReport(into, tuple(load.missing_names), tuple(load.left_out()))
    return load.plan


# Values of any kind


def _fill(load: LoadPlanner, key: str, value: object, put: Callable[[Any], None], depth: int) -> None:
    if depth > DEEPEST:
        raise CheckpointMismatch(f"{key!r} of `into` is nested deeper than {DEEPEST} levels, or holds itself.")
    if not isinstance(value, torch.nn.Module) and load.skips(key):
        return
    if is_tensor(value):
        _tensor(load, key, value, put)
    elif isinstance(value, torch.nn.Module):
        _module(load, key, value, depth)
    elif isinstance(value, torch.optim.Optimizer):
        plan_optimiser(load, key, value)
    elif isinstance(value, PerWorker):
        _per_worker(load, key, value, depth)
    elif isinstance(value, torch.Generator):
        load.later(value.set_state, load.new_tensor(key))
    elif isinstance(value, np.ndarray):
        _array(load, key, value, put)
    elif has_state(value):
        load.later(value.load_state_dict, _as_before(value.state_dict(), load.everything(key)))
    elif isinstance(value, dict) and not is_plain(value):
        _mapping(load, key, value, depth)
    elif isinstance(value, list | tuple) and not is_plain(value):
        _items(load, key, value, put, depth)
    else:
        load.later(put, _as_before(value, load.everything(key)))


def _mapping(load: LoadPlanner, key: str, value: dict[Any, Any], depth: int) -> None:
    for name, item in _plain_tensors(load, key, value).items():
        _fill(load, joined(key, name), item, partial(setitem, value, name), depth + 1)


def _plain_tensors(load: LoadPlanner, key: str, items: Mapping[Any, Any]) -> dict[Any, Any]:
    """Plan the plain tensors among the items in one pass, and return the other items."""
    plain, others = plain_of(items)
    columns = joined_all(key, plain.names), plain.tensors, plain.addresses, plain.codes, plain.shapes
    tensors, wants, checked = load.manifest.tensors, load.plan.wants, load.manifest.files_of is None
    for at, x, address, code, shape in zip(*columns, strict=True):
        stored = tensors.get(at)
        if stored is None and load.skips(at):
            continue
        if stored is None or stored.code != code or stored.shape != shape or len(stored.blocks) != 1:
            _tensor(load, at, x, lambda _: None)
        else:
            wants.append(Want(at, stored, x, None, False, address, checked))
    return others


def _items(
    load: LoadPlanner, key: str, value: list[Any] | tuple[Any, ...], put: Callable[[Any], None], depth: int
) -> None:
    found = load.below(key)
    load.list_lengths.add(key)
    length = len(found.children) if found is not None and found.kind in (list, tuple) else None
    if length != len(value):
        raise CheckpointMismatch(
            f"{key!r} has {len(value)} items in `into`, "
            + ("and is no list in the checkpoint." if length is None else f"{length} in the checkpoint.")
        )
    items = list(value)
    for place, item in enumerate(value):
        _fill(load, joined(key, place), item, partial(setitem, items, place), depth + 1)
    if isinstance(value, list):
        load.plan.finish.append(lambda: value.__setitem__(slice(None), items))
    else:
        load.plan.finish.append(lambda: put(tuple(items)))


def _per_worker(load: LoadPlanner, key: str, value: PerWorker, depth: int) -> None:
    load.used.add(key)
    count = load.manifest.per_worker.get(key)
    if count is None:
        if load.below(key) is None:
            raise load.missing(key)
        raise CheckpointMismatch(f"{key!r} is a PerWorker in `into`, but was saved as one value for all workers.")
    place = load.place
    if count != load.workers:
        if value.when_resized == "refuse":
            raise CheckpointMismatch(
                f"{key!r} was saved by {count} workers, one value each, and is loaded by {load.workers}.\n"
                "  fix: PerWorker(value, when_resized='keep') leaves every worker what it has, 'wrap' gives worker i that "
                "of worker i modulo the saved number."
            )
        if value.when_resized == "keep":
            logger.warning(
                "%r was saved by %d workers, here are %d: every worker keeps its own", key, count, load.workers
            )
            return
        place %= count
    below = f"{key}/@{place}" if key else f"@{place}"
    _fill(load, below, value.value, partial(setattr, value, "value"), depth + 1)


# Tensors


def _tensor(load: LoadPlanner, key: str, value: Tensor, put: Callable[[Any], None]) -> None:
    if is_deferred(value):
        if id(value) not in load.made:
            load.made[id(value)] = _deferred(load, key, value)
        made = load.made[id(value)]
        load.plan.finish.append(lambda: put(in_place_of(value, made)))
        return
    stored = load.stored(key)
    share = local_tensor(value, key, load.rank)
    if share.shape != stored.shape or share.code != stored.code:  # inline for speed: most tensors fit
        load.check_fits(key, stored, share.shape, dtype_of(value))
    for part in share.parts:
        load.want(key, stored, part.data, part.box, fresh=False)


def _array(load: LoadPlanner, key: str, value: np.ndarray, put: Callable[[Any], None]) -> None:
    check_array(value, key)
    stored = load.stored(key)
    if value.flags.writeable and value.flags.c_contiguous:
        target = torch.from_numpy(value)
        load.check_fits(key, stored, tuple(target.shape), target.dtype)
        load.want(key, stored, target, None, fresh=False)
    else:
        load.later(lambda new: put(new.numpy()), load.new_tensor(key))


def _deferred(load: LoadPlanner, key: str, value: Tensor) -> Tensor:
    """A real tensor in place of one without memory: only this worker's block, uninitialised, to be read into."""
    stored = load.stored(key)
    layout = layout_of(value)
    load.check_fits(key, stored, tuple(value.shape) if layout is None else layout.global_shape, value.dtype)
    box, shape = on_this_worker(value, key, load.rank)
    device = torch.device("cpu") if value.device.type == "meta" else value.device
    data = torch.empty(shape, dtype=value.dtype, device=device)
    if math.prod(shape):
        load.want(key, stored, data, box, fresh=True)
    return of_the_same_kind(value, data)


# Modules


def _module(load: LoadPlanner, key: str, module: torch.nn.Module, depth: int) -> None:
    if _is_single_module(load, key):
        key = ""
    names = _without_tied(load, key, module.state_dict(keep_vars=True))
    if names and load.skips(key):
        load.plan.finish.append(partial(materialize_rest, module))
        return
    _check_names(load, key, (joined(key, name) for name in names), f"the {type(module).__name__}")
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
    for name, item in _plain_tensors(load, key, names).items():
        owner, last = module, name
        if "." in name:
            way, last = name.rsplit(".", 1)
            owner = module.get_submodule(way)
        if last == "_extra_state":
            if load.skips(joined(key, name)):
                continue
            load.later(owner.set_extra_state, _as_before(item, load.everything(joined(key, name))))
        else:
            _fill(load, joined(key, name), item, partial(setattr, owner, last), depth + 1)
    load.plan.finish.append(partial(materialize_rest, module))


def _is_single_module(load: LoadPlanner, key: str) -> bool:
    """Whether the checkpoint is the state of a single module, saved without the key under which `into` has it.

    That needs `key` to be the only one in `into`: the checkpoint cannot be two modules.
    """
    if not isinstance(load.into, dict) or list(load.into) != [key] or key in load.tree.children:
        return False
    return all(child.kind is None for child in load.tree.children.values())


def _without_tied(load: LoadPlanner, key: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """The names of a module, without those that are missing while their tensor is stored under another name.

    Other programs store tied parameters only once.
    """
    tensors = load.manifest.tensors
    stored = {id(x) for name, x in names.items() if is_tensor(x) and joined(key, name) in tensors}
    return {name: x for name, x in names.items() if id(x) not in stored or joined(key, name) in tensors}


def _check_names(load: LoadPlanner, key: str, wanted: Iterable[str], what: str) -> None:
    if not load.strict:
        return
    expected = set(wanted)
    prefix = f"{key}/" if key else ""
    stored = {name for name in (*load.manifest.tensors, *load.manifest.values) if name.startswith(prefix)}
    missing = sorted(name for name in expected - stored if load.below(name) is None)
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
