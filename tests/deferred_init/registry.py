"""Where the constructors to defer are kept: by name, functions without arguments."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

CASES: dict[str, Callable[[], nn.Module]] = {}


def case(fn: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    CASES[fn.__name__] = fn
    return fn
