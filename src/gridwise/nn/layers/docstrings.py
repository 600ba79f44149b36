"""Docstrings of layers that differ in little: written once, for one of them, and adapted to the others.

    @documented_like(DistributedConv2d)     name, axes and extents of the examples are those of `DistributedConv3d`;
    class DistributedConv3d(Conv):          sections that the class writes itself stay its own
        dims = 3

Texts describe the layer in two dims of space: axes ``(batch, channel, height, width)``, examples with square images.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import TypeVar

AXES = {1: "length", 2: "height, width", 3: "depth, height, width"}
HEADING = re.compile(r"\n\n(?=[A-Z]\w+\n---)")
SQUARE = re.compile(r"\b(\d+), \1(?=[)\]])")
T = TypeVar("T", bound=type)


def documented_like(source: type) -> Callable[[T], T]:
    """Complete the docstring of a class with the sections of another's."""

    def document(layer: T) -> T:
        layer.__doc__ = "\n\n".join((_sections(_adapted(source, layer)) | _sections(layer.__doc__)).values())
        return layer

    return document


def _adapted(source: type, layer: type) -> str:
    """The docstring of `source` with the name, the axes and the extents of `layer`."""
    old, new = (each.__name__.removeprefix("Distributed") for each in (source, layer))
    text = (source.__doc__ or "").replace(old, new)
    if old.endswith("2d") and not new.endswith("2d"):
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
