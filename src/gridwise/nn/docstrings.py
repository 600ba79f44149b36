"""Docstrings of classes and functions that differ in little: written once, for one of them, and adapted to the others.

A family of layers has its text on its base class, for two dims of space: axes ``(batch, channel, height, width)``, examples
with square images. A layer of the family without a docstring of its own gets that text with its own name, axes and extents.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, TypeVar

import torch

AXES = {1: "length", 2: "height, width", 3: "depth, height, width"}
HEADING = re.compile(r"\n\n(?=[A-Z]\w+\n---)")
SQUARE = re.compile(r"\b(\d+), \1(?=[)\]])")
T = TypeVar("T", bound=Callable[..., object])


def documented_like(source: Callable[..., object]) -> Callable[[T], T]:
    """Complete the docstring of a class or function with the sections of another's."""

    def document(thing: T) -> T:
        text = adapted(source.__doc__ or "", source.__name__, thing.__name__)
        thing.__doc__ = "\n\n".join((_sections(text) | _sections(thing.__doc__)).values())
        return thing

    return document


class LayerFamily:
    """Base of layers whose docstring is that of their family; it names ``torch.nn.Xyz2d`` first."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        text = next((base.__doc__ for base in cls.__mro__[1:] if base.__doc__), "")
        named, own = re.search(r"`torch\.nn\.(\w+)`", text), cls.__name__.removeprefix("Distributed")
        if cls.__doc__ is None and named and hasattr(torch.nn, own):
            cls.__doc__ = adapted(text, named[1], own)


def adapted(text: str, source: str, name: str) -> str:
    """A docstring of `source` with the name, the axes and the extents of the layer `name`."""
    old, new = source.removeprefix("Distributed"), name.removeprefix("Distributed")
    text = cleandoc(text).replace(old, new)
    if old.endswith("2d") and new.endswith(("1d", "3d")):
        dims = int(new[-2])
        text = text.replace("2d", f"{dims}d").replace(AXES[2], AXES[dims])
        text = SQUARE.sub(lambda match: ", ".join([match[1]] * dims), text)
    return text


def _sections(doc: str | None) -> dict[str, str]:
    """The sections of a docstring by their headings; the one of the summary is empty."""
    if not doc:
        return {}
    summary, *others = HEADING.split(cleandoc(doc))
    return {"": summary, **{text.partition("\n")[0]: text for text in others}}
