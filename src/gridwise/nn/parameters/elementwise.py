"""Does an optimiser work element by element? One that nobody knows by name is tried.

    whole    three steps on two matrices
    cut      three steps on parts of them, uneven ones, each part by an optimiser of its own, as on a worker
    yes      if every element moves alike

It is made anew with its own settings, as its groups hold them; the matrices have dims over 128, from which some optimisers
factorise. What cannot be tried counts as no.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

KNOWN = {
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax),
    *(torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.ASGD),
}
"""Classes that do; a class derived from one of them may not."""
SCHEDULED = {"lr", "initial_lr", "max_lr", "min_lr", "swa_lr"}
"""Settings that schedulers change, and that do not decide it."""
_tried: dict[tuple[type, str], str | None] = {}


def reason_against(optimizer: torch.optim.Optimizer) -> str | None:
    """What an optimiser does that does not work on blocks, or that nobody knows; None if it works element by element."""
    kind = getattr(optimizer, "cut_kind", type(optimizer))  # that of `optim.cut_states`
    if kind in KNOWN:
        return None
    for group in optimizer.param_groups:
        settings = {name: value for name, value in group.items() if name not in ("params", "param_names")}
        key = kind, repr(sorted((name, repr(value)) for name, value in settings.items() if name not in SCHEDULED))
        if key not in _tried:
            try:
                _tried[key] = _trial(kind, optimizer, settings)
            except Exception as error:
                _tried[key] = (
                    f"is not known to work element by element, and cannot be tried: {type(error).__name__}: {error}"
                )
        if _tried[key] is not None:
            return _tried[key]
    return None


def _trial(kind: type[torch.optim.Optimizer], like: torch.optim.Optimizer, settings: Mapping[str, Any]) -> str | None:
    given = dict(vars(like)) | dict(settings)
    if not float(given.get("lr", 1.0)):
        given["lr"] = float(like.defaults.get("lr", 0.0)) or 1e-3  # a warm-up begins at 0, where nothing moves
    _, *parameters = inspect.signature(kind).parameters.values()
    missing = [p.name for p in parameters if p.name not in given and p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    if missing:
        return (
            "is not known to work element by element, and cannot be tried: its constructor needs "
            f"{', '.join(missing)}, which its groups do not hold"
        )
    named = {p.name: given[p.name] for p in parameters if p.name in given and p.kind is not p.VAR_KEYWORD}
    generator = torch.Generator().manual_seed(0)
    starts, slices = [], [((slice(0, 37),), (slice(37, 160),)), ((..., slice(0, 90)), (..., slice(90, 140)))]
    for shape in ((160, 130), (150, 140)):
        starts.append(torch.randn(shape, generator=generator))
    with torch.random.fork_rng(devices=[]):
        parts = [[start.clone() for start in starts]]
        parts += [[start[cut[i]].clone() for start, cut in zip(starts, slices, strict=True)] for i in range(2)]
        held = [[torch.nn.Parameter(x) for x in part] for part in parts]
        optimizers = [kind(part, **named) for part in held]
        for _ in range(3):
            gradients = [torch.randn(start.shape, generator=generator) for start in starts]
            for n, part in enumerate(held):
                for p, g, cut in zip(part, gradients, slices, strict=True):
                    p.grad = (g if n == 0 else g[cut[n - 1]]).clone()
            for optimizer in optimizers:
                torch.manual_seed(0)
                optimizer.step()
    for place, (start, cut) in enumerate(zip(starts, slices, strict=True)):
        moved = held[0][place].detach() - start
        for n in range(2):
            theirs = held[n + 1][place].detach() - start[cut[n]]
            if not torch.allclose(moved[cut[n]], theirs, rtol=1e-3, atol=1e-4 * float(moved.abs().max())):
                return _difference(moved[cut[n]], theirs)
    return None


def _difference(whole: Tensor, cut: Tensor) -> str:
    worst = (whole - cut).abs().max() / whole.abs().max()
    return (
        f"does not work element by element (on matrices cut in two, three steps differ by {float(worst):.1g} of a step)"
    )
