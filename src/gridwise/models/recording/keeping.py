"""Tensors of a call that the model's code keeps: in an attribute, a list, an `lru_cache` or anywhere else.

One that depends on shapes only becomes a real tensor where it lies, so the cache is filled as the sequential model
would have filled it. Any other would have no numbers, and is named.
"""

from __future__ import annotations

import functools
import gc
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from ...torch_internals.tracer import TracedTensor, become
from .containers import flatten
from .numbers import DependsOn, KnownNumbers
from .tracing import Fakes

CACHES = (type(functools.lru_cache(lambda: None)),)


def kept_fakes(fakes: Fakes, graphs: Sequence[torch.fx.Graph]) -> list[Tensor]:
    """The fakes of a recording that are referenced from outside its graphs."""
    gc.collect(0)  # frees reference cycles; survivors move to generation 1
    ours = {id(x) for graph in graphs for node in graph.nodes for x in flatten(node.meta.get("val"))[0]}
    made = gc.get_objects(generation=1)
    return [x for x in made if type(x) is TracedTensor and x.fake_mode is fakes.mode and id(x) not in ours]


def make_real(kept: Sequence[Tensor], numbers: KnownNumbers) -> dict[int, str]:
    """Make kept tensors real; for those that have no numbers, by identity, what they depend on."""
    lacking = dict[int, str]()
    for x in kept:
        try:
            numbers.of([x])
        except DependsOn as error:
            lacking[id(x)] = str(error)
    left = [x for x in kept if id(x) not in lacking]
    for fake, value in zip(left, numbers.of(left), strict=True):  # at once: what shares memory shares it
        become(fake, value.detach())
    return lacking


def abandon(fakes: Fakes, numbers: KnownNumbers, error: BaseException) -> None:
    """After an error, leave no fakes behind where a later call of the model would find them."""
    traceback.clear_frames(error.__traceback__)
    kept = kept_fakes(fakes, [])
    lacking = make_real(kept, numbers)
    forget([x for x in kept if id(x) in lacking])


def lines_of(kept: Sequence[Tensor], lacking: Mapping[int, str], numbers: KnownNumbers) -> list[str]:
    """A line for each of the first tensors that have no numbers: shape, where it is kept, what it depends on, its line."""
    lines, others = list[str](), list[str]()
    for place in [i for i, x in enumerate(kept) if id(x) in lacking][:8]:
        owner, line, cause = _owner_of(kept[place], kept), numbers.line_of(kept[place]), lacking[id(kept[place])]
        said = f"of shape {tuple(kept[place].shape)}, in {owner or 'another object'}, depends on {cause}"
        said += f"; made in {line}" if line else ""
        (lines if owner else others).append(said)  # others are kept by autograd, for those
        if len(lines) == 3:
            break
    return lines or others[:1]


def forget(kept: Sequence[Tensor]) -> None:
    """Empty the `lru_cache`s that hold tensors without numbers, which would be found there by a later call."""
    owners: Sequence[object] = kept
    for _ in range(3):  # a cache, its entry, a tuple in that
        owners = (
            [each for each in gc.get_referrers(*owners) if each is not owners and each is not kept] if owners else []
        )
        for owner in owners:
            if isinstance(owner, CACHES):
                owner.cache_clear()
        owners = [each for each in owners if isinstance(each, tuple) or type(each).__module__ == "functools"]


def _owner_of(x: object, besides: object) -> str:
    """What refers to an object, as a user would call it; nothing if no Python object does."""
    names, passed = list[str](), [id(besides)]
    for _ in range(4):  # without closures: their cells would refer to it
        owner, name, owners = None, "", gc.get_referrers(x)
        for each in owners:
            if not name and not isinstance(each, FrameType) and id(each) not in passed:
                owner, name = each, _name_in(each, x)
        if owner is None:
            break
        names.append(name or f"a {type(owner).__name__}")
        if name:
            break
        passed += [id(owners), id(x)]
        x = owner
    return " in ".join(names)


def _name_in(owner: Any, x: object) -> str:
    """How a user would name the place where `owner` holds an object; nothing if it has no name."""
    if isinstance(owner, CACHES):
        return f"the cache of {owner.__wrapped__.__qualname__}"
    if isinstance(owner, CellType):
        for closure in [each for each in gc.get_referrers(owner) if isinstance(each, tuple)]:
            place = next(i for i, cell in enumerate(closure) if cell is owner)
            for function in gc.get_referrers(closure):
                if isinstance(function, FunctionType) and function.__closure__ is closure:
                    return f"`{function.__code__.co_freevars[place]}` of {function.__qualname__}"
        return ""
    if isinstance(owner, dict):
        name = next((key for key, value in owner.items() if value is x and isinstance(key, str)), None)
        module = sys.modules.get(str(owner.get("__name__")))
        if name is not None and isinstance(module, ModuleType) and vars(module) is owner:
            return f"`{name}` of {module.__name__}"
        holder = next((each for each in gc.get_referrers(owner) if getattr(each, "__dict__", None) is owner), None)
        return f"{type(holder).__qualname__}.{name}" if name is not None and holder is not None else ""
    if not isinstance(owner, list | tuple | set) and hasattr(owner, "__dict__"):
        name = next((key for key, value in vars(owner).items() if value is x), None)
        return f"{type(owner).__qualname__}.{name}" if name is not None else ""
    return ""
