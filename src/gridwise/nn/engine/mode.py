"""The mode of a layer or model: what, besides inputs, decides what a call does. It must be the same on all workers."""

from __future__ import annotations

import json
import operator
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import Tensor

from ...comm.agreement import gather_lines
from ...comm.transports.base import Team, Transport
from ...errors import PartitionError
from ...torch_internals.modes import without_torch_function
from ..parameters.gradient_wire import current_wire
from ..parameters.replicas import checks_every
from .agreement import Vote, is_on, key_of
from .autocast import autocast_dtypes
from .grid_random import sequential

SHOWN = 6
"""How many differences an error lists before it says how many more there are."""


StateStructure = tuple[tuple[str, ...], tuple[Any, ...]]
"""Names of parameters and buffers, and for each its dtype, device, shape and requires_grad, or None."""
NO_STATE: StateStructure = ((), ())
_look = operator.attrgetter("dtype", "device", "shape", "requires_grad")


def structure_of_state(module: torch.nn.Module) -> StateStructure:
    """The structure of a layer's parameters and buffers; no values are read, so no device is waited for."""
    found: dict[str, Tensor | None] = {**module._parameters, **module._buffers}
    return tuple(found), _looks(found.values())


def _looks(values: Iterable[Tensor | None]) -> tuple[Any, ...]:
    """The dtype, device, shape and requires_grad of each."""
    with without_torch_function():  # halves the time for blocks
        return tuple([None if value is None else _look(value) for value in values])


def without_shapes(held: StateStructure) -> Hashable:
    """The part of `held` that must be the same on all workers: without the shapes of blocks and the indices of devices.

    Whether a parameter needs a gradient matters only where autograd records.
    """
    (names, looks), records = held, torch.is_grad_enabled()
    return names, tuple(look and (look[0], look[1].type, records and look[3]) for look in looks)


def agree_mode(
    transport: Transport, team: Team, what: str, mode: Hashable, module: torch.nn.Module, new: bool = False
) -> bool:
    """Whether any worker has `new` replicas. Raises on all unless they have the same `mode`, which is that of `module`."""
    if not is_on() or len(team) == 1:
        return False
    vote = Vote()
    asked, any_new = vote.equal(key_of(repr((mode, checks_every())))), vote.any(new)
    vote.count(transport, team, what)
    if vote.read(asked) is None:
        fix = (
            "set attributes and parameters, call train(), eval(), requires_grad_() and to(), and enter no_grad, "
            "autocast, gradient_wire and sequential_random, on all alike."
        )
        text = f"{what} is not in the same mode on all workers."
        raise PartitionError(text, _differences(transport, team, mode, module), fix)
    return bool(vote.read(any_new))


def _differences(transport: Transport, team: Team, mode: Hashable, module: torch.nn.Module) -> list[str]:
    """The settings of each worker that are not the same on all."""
    own = _settings(module)
    every = [
        json.loads(part) for part in transport.gather_bytes(json.dumps(own).encode(), team, "the text of an error")
    ]
    names = dict.fromkeys(name for each in every for name in each)
    differ = [name for name in names if len({each.get(name) for each in every}) > 1]
    told = [f"{name}: {own.get(name, 'absent')}" for name in differ[:SHOWN]]
    more = [f"and {len(differ) - SHOWN} more"] if len(differ) > SHOWN else []
    return gather_lines(transport, team, ", ".join(told + more) or str(mode))


def _settings(module: torch.nn.Module) -> dict[str, str]:
    """Everything that a mode consists of, in words."""
    settings = {
        "autograd": "on" if torch.is_grad_enabled() else "off",
        "autocast": ", ".join(f"{dtype} on {kind}" for kind, dtype in autocast_dtypes().items()) or "off",
        "sequential_random": "off" if sequential.get() is None else "on",
        "gradient_wire": "full" if current_wire() is None else str(current_wire()),
        "GRIDWISE_CHECK_REPLICAS": str(checks_every()),
    }
    for name, part in module.named_modules():
        settings[name or "itself"] = "train()" if part.training else "eval()"
        for own in (*getattr(part, "_settings", ()), "track_running_stats"):
            if own in part.__dict__:
                settings[f"{name}.{own}".lstrip(".")] = repr(part.__dict__[own])
        for own, value in (*part._parameters.items(), *part._buffers.items()):
            settings[f"{name}.{own}".lstrip(".")] = _words(value)
    return settings


def _words(value: Tensor | None) -> str:
    if value is None:
        return "None"
    frozen = ", frozen" if isinstance(value, torch.nn.Parameter) and not value.requires_grad else ""
    return f"{value.dtype}{'' if value.device.type == 'cpu' else f' on {value.device.type}'}{frozen}"
