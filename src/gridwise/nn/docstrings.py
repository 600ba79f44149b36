"""Docstrings and arguments shared by similar classes: written once, and adapted to each.

A family of layers is documented on its base class, for two dims of space: axes ``(batch, channel, height, width)`` and
examples with square images. Each layer of the family gets that text with its own name, axes and extents, except for the
sections that it writes itself. `arguments_of` gives a constructor the arguments of torch's layer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from ..partition import Partition

AXES = {1: "length", 2: "height, width", 3: "depth, height, width"}
HEADING = re.compile(r"\n\n(?=[A-Z]\w+\n---)")
SQUARE = re.compile(r"\b(\d+), \1(?=[)\]])")
T = TypeVar("T", bound=Callable[..., object])
Template = TypeVar("Template", bound=torch.nn.Module)
Arguments = ParamSpec("Arguments")


def documented_like(source: Callable[..., object]) -> Callable[[T], T]:
    """Fill in the sections that a docstring lacks from the docstring of `source`."""

    def document(thing: T) -> T:
        text = adapted(source.__doc__ or "", source.__name__, thing.__name__)
        thing.__doc__ = "\n\n".join((_sections(text) | _sections(thing.__doc__)).values())
        return thing

    return document


class LayerFamily:
    """Base of layers that share a docstring: that of the nearest base class which names a ``torch.nn.Xyz2d``."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own, pattern = cls.__name__.removeprefix("Distributed"), re.compile(r"`torch\.nn\.(\w+)`")
        named = ((base, pattern.search(base.__dict__.get("__doc__") or "")) for base in cls.__mro__[1:])
        of_family = (each for each in named if issubclass(each[0], LayerFamily) and each[0] is not LayerFamily)
        family = [(base, found[1]) for base, found in of_family if found]
        if not family or not hasattr(torch.nn, own):
            return
        base, source = family[0]
        if cls.__doc__ is None or cls.__module__ == base.__module__:
            text = adapted(base.__doc__ or "", source, own)
            cls.__doc__ = "\n\n".join((_sections(text) | _sections(cls.__doc__)).values())


def arguments_of(
    layer: Callable[Arguments, Template],
) -> Callable[[Callable[[Any, Partition, Template], None]], Callable[Concatenate[Any, Partition, Arguments], None]]:
    """Let a constructor take `P_x` and then the arguments of torch's `layer`; `construct` gets `P_x` and that layer."""

    def decorate(
        construct: Callable[[Any, Partition, Template], None],
    ) -> Callable[Concatenate[Any, Partition, Arguments], None]:
        def __init__(self: Any, P_x: Partition, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
            construct(self, P_x, layer(*args, **kwargs))

        (of_self, of_partition, *_), torchs = inspect.signature(construct).parameters.values(), inspect.signature(layer)
        shown = torchs.replace(parameters=[of_self, of_partition, *torchs.parameters.values()])
        __init__.__signature__ = shown  # type: ignore[attr-defined]
        return __init__  # type: ignore[return-value]  # `P_x` may also be passed by name

    return decorate


def adapted(text: str, source: str, name: str) -> str:
    """The docstring of `source`, with the name, axes and extents of the layer `name` instead."""
    old, new = source.removeprefix("Distributed"), name.removeprefix("Distributed")
    text = cleandoc(text).replace(old, new)
    if old.endswith("2d") and new.endswith(("1d", "3d")):
        dims = int(new[-2])
        text = text.replace("2d", f"{dims}d").replace(AXES[2], AXES[dims])
        text = SQUARE.sub(lambda match: ", ".join([match[1]] * dims), text)
    return text


def _sections(doc: str | None) -> dict[str, str]:
    """The sections of a docstring by heading; the summary's heading is empty."""
    if not doc:
        return {}
    summary, *others = HEADING.split(cleandoc(doc))
    return {"": summary, **{text.partition("\n")[0]: text for text in others}}
