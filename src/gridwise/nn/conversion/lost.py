"""What belongs to a model and would be lost in its conversion: refused, by name, before it is looked into.

Containers keep their classes and what was set on them. Layers are replaced by distributed ones, and the model itself by a
`DistributedModel`: what they do in their own way, apart from `forward`, would be gone.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...errors import UnsupportedError, describe
from . import layers

CONTAINERS = (torch.nn.Module, torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def refuse_lost(model: torch.nn.Module) -> None:
    """Raise if something would be lost, naming all of it."""
    name = type(model).__name__
    if layers.has_hooks(model) or any(map(_has_hooks, model.parameters())):
        raise UnsupportedError(
            f"distribute: {name}, or a parameter of it, has hooks, which would be lost.\n  fix: register them on the result."
        )
    problems = [
        f"{f'{place}: ' if place else ''}{type(module).__name__} {problem}"
        for place, module in model.named_modules()
        for problem in (*_of_any(module), *(_of_replaced(module) if _is_layer(module) else ()))
    ]
    problems += [f"{name} {problem}" for problem in _of_root(model)]
    if problems:
        fix = (
            "register hooks on the result; let what has its own ways be a part of the model that is no layer of torch."
        )
        raise UnsupportedError(describe(f"distribute: {name} has parts that would be lost.", problems, fix))


def _of_any(module: torch.nn.Module) -> Iterator[str]:
    if module._backward_hooks or module._backward_pre_hooks:
        yield "has backward hooks"
    own = {**{key: value for key, value in vars(module).items() if isinstance(value, Tensor)}, **module._buffers}
    for key, value in own.items():
        if value is not None and value.grad_fn is not None:
            yield f"has a tensor {key!r} that was computed from others (weight_norm of old?), which cannot be copied"


def _of_replaced(module: torch.nn.Module) -> Iterator[str]:
    for key in ("forward", *layers.WAYS):
        if key in vars(module):
            yield f"has a {key!r} that was set on it, and not on its class"
    if isinstance(module, torch.nn.modules.instancenorm._InstanceNorm):
        tracks: bool = module.track_running_stats
        if tracks != (module.running_mean is not None):
            yield f"has `track_running_stats` (={tracks}), which was set after its construction"
    parametrized = "parametrizations" in module._modules  # which brings such hooks, and is named where it is called
    if any(vars(module).get(key) for key in STATE_HOOKS) and not parametrized:
        yield "has hooks for its state"


def _of_root(model: torch.nn.Module) -> Iterator[str]:
    kind = type(model)
    for key in layers.WAYS:
        of_torch = getattr(getattr(kind, key), "__module__", "").partition(".")[0] == "torch"
        if key in vars(model) or (getattr(kind, key) is not getattr(torch.nn.Module, key) and not of_torch):
            yield f"has a {key!r} of its own, which the result has not: torch.nn.Sequential(model) keeps it"
    if any(vars(model).get(key) for key in STATE_HOOKS):
        yield "has hooks for its state"


def _is_layer(module: torch.nn.Module) -> bool:
    """Whether a module is one of torch's, which is replaced or traced in another form."""
    kinds = type(module).__mro__
    base = next((kind for kind in kinds if kind.__module__.startswith("torch.nn.modules")), torch.nn.Module)
    return base not in CONTAINERS


def _has_hooks(parameter: Tensor) -> bool:
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))
