"""Forward hooks that return nothing: they collect tensors, which is recorded, or do something that a recording does not repeat.

A hook of the model's own package is a part of the model, as those with which transformers and timm collect hidden states.
Any other has to keep what it is given; tensors that are still kept after the call are refused there.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...torch_internals.modules import forward_hooks, forward_pre_hooks
from .lines import calls_model

Refusal = Callable[[str, str], Exception]


def packages_of(modules: Iterable[torch.nn.Module]) -> set[str]:
    """The packages of the model's own code."""
    return {_package(type(module).__module__) for module in modules} - {"torch", "__main__"}


def watch_forward_hooks(path: str, module: torch.nn.Module, packages: Collection[str], refusal: Refusal) -> None:
    """Refuse hooks that return nothing, unless they are of one of these packages, or collect."""

    def watched(hook: Callable[..., Any]) -> Callable[..., Any]:
        @calls_model
        def call(*args: object, **kwargs: object) -> Any:
            parts = list(_parts(args[1:]))
            before = sum(map(sys.getrefcount, parts))
            result = hook(*args, **kwargs)
            if result is None and sum(map(sys.getrefcount, parts)) <= before:
                name = getattr(hook, "__qualname__", type(hook).__qualname__)
                raise refusal(f"a forward hook that returns nothing ({name})", path or type(module).__name__)
            return result

        return call

    for hooks in (forward_hooks(module), forward_pre_hooks(module)):
        for key, hook in list(hooks.items()):
            package = _package_of(hook)
            if package != "torch" and package not in packages:  # torch's older weight_norm and spectral_norm are hooks
                hooks[key] = watched(hook)


def _package_of(hook: Any) -> str:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return _package(str(getattr(hook, "__module__", None) or type(hook).__module__))


def _package(module: str) -> str:
    return module.partition(".")[0]


def _parts(value: object) -> Iterator[object]:
    """The tensors in a value, and the containers around them."""
    if isinstance(value, list | tuple | dict):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from _parts(part)
    elif isinstance(value, Tensor):
        yield value
