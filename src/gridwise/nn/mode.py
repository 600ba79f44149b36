"""What decides what a call does besides its inputs, and has to be the same on all workers: the mode of a layer or model."""

from __future__ import annotations

import json
from collections.abc import Hashable

import torch

from ..comm.rollcall import tell
from ..comm.transport import Team, Transport
from ..errors import PartitionError, describe
from .agreement import Ballot, is_on, key_of
from .autocast import autocasts
from .overlap import overlaps

SHOWN = 6
"""How many differences an error lists before it says how many more there are."""


def agree_mode(transport: Transport, team: Team, what: str, mode: Hashable, module: torch.nn.Module) -> None:
    """Raise on all workers unless they have the same `mode`, which is that of `module`."""
    if not is_on() or len(team) == 1:
        return
    ballot = Ballot()
    place = ballot.equal(key_of(repr(mode)))
    ballot.count(transport, team, what)
    if ballot.read(place) is None:
        fix = "call train(), eval(), requires_grad_() and to(), and enter no_grad, autocast and overlap, on all alike."
        asked = f"{what} is not in the same mode on all workers."
        raise PartitionError(describe(asked, _differences(transport, team, mode, module), fix))


def _differences(transport: Transport, team: Team, mode: Hashable, module: torch.nn.Module) -> list[str]:
    """What each worker has that others have not."""
    own = _settings(module)
    every = [
        json.loads(part) for part in transport.gather_bytes(json.dumps(own).encode(), team, "the text of an error")
    ]
    names = dict.fromkeys(name for each in every for name in each)
    differ = [name for name in names if len({each.get(name) for each in every}) > 1]
    told = [f"{name}: {own.get(name, 'absent')}" for name in differ[:SHOWN]]
    more = [f"and {len(differ) - SHOWN} more"] if len(differ) > SHOWN else []
    return tell(transport, team, ", ".join(told + more) or str(mode))


def _settings(module: torch.nn.Module) -> dict[str, str]:
    """All that a mode is made of, in words."""
    settings = {
        "autograd": "on" if torch.is_grad_enabled() else "off",
        "autocast": "on" if autocasts() else "off",
        "overlap": "on" if overlaps() else "off",
    }
    for name, part in module.named_modules():
        settings[name or "itself"] = "train()" if part.training else "eval()"
        if "track_running_stats" in part.__dict__:
            settings[f"{name}.track_running_stats".lstrip(".")] = str(part.__dict__["track_running_stats"])
    for name, parameter in module.named_parameters():
        settings[name] = f"{parameter.dtype}{'' if parameter.requires_grad else ', frozen'}"
    return settings | {name: str(buffer.dtype) for name, buffer in module.named_buffers()}
