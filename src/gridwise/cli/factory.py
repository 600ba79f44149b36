"""What `module:function` on a command line makes: modules beside the user's, in the current folder, can be imported."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import PartitionError


@contextmanager
def importing_from_here() -> Iterator[None]:
    """Modules in the current folder can be imported: a factory and a `forward` may do so too."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def model_of(factory: str, make: Callable[[Any], Any]) -> torch.nn.Module:
    """The model of a factory, called through `make`."""
    module, colon, name = factory.partition(":")
    if not colon or not name:
        raise PartitionError(f"`{factory}` is not of the form module:function.")
    try:
        made: Any = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise PartitionError(f"`{factory}` cannot be found: {error}.") from error
    model = make(made)
    if not isinstance(model, torch.nn.Module):
        raise PartitionError(f"`{factory}` makes a {type(model).__name__}, no torch.nn.Module.")
    return model


def shape_of(name: str, text: str) -> tuple[int, ...]:
    """A shape, as in 1x3x64x64."""
    try:
        return tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise PartitionError(
            f"`{name}` (={text!r}) is no shape.\n  fix: numbers with an x between, as 1x3x64x64."
        ) from None
