"""`show`: the contents of a checkpoint as tables, in a terminal as text, in a notebook as HTML."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..html import table
from .format.contents import read_contents
from .format.manifest import Manifest
from .format.values import decoded
from .store_path import Place, place_of

LONGEST = 100
"""Most characters shown of a value; longer ones are cut off."""


@dataclass(frozen=True)
class Contents:
    """The contents of a checkpoint: `print` them, or let a notebook show them."""

    path: Place
    manifest: Manifest

    @property
    def facts(self) -> str:
        found = self.manifest
        size = f"{self.path}: {len(found.tensors)} tensors, {_readable(found.nbytes)} in {len(found.files)} files, "
        if found.files_of is not None:
            return f"{size}safetensors without checksums"
        return f"{size}by {found.workers} workers of {found.written_by}, {found.written_at}, id {found.id}"

    def tensors(self) -> list[list[str]]:
        """A row for each tensor, after a header row."""
        lines = [["tensor", "dtype", "global shape", "blocks", "bytes"]]
        tied = self.manifest.tied
        for key, stored in self.manifest.tensors.items():
            shape = " x ".join(map(str, stored.shape)) or "number"
            kind = str(stored.dtype).removeprefix("torch.")
            lines.append([key, kind, shape, str(len(stored.blocks)), _readable(stored.nbytes)])
            if key in tied:
                lines[-1][3:] = [f"those of {tied[key]}", ""]
        return lines

    def values(self) -> list[list[str]]:
        """A row for each value that is not a tensor, after a header row."""
        found = {f"metadata: {name}": value for name, value in self.manifest.metadata.items()} | self.manifest.values
        texts = ((key, json.dumps(value)) for key, value in found.items())
        return [
            ["value", ""],
            *([key, text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."] for key, text in texts),
        ]

    def __str__(self) -> str:
        parts = [self.facts, _columns(self.tensors())]
        return "\n".join(parts + ([_columns(self.values())] if len(self.values()) > 1 else []))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        values = table(self.values(), left=2) if len(self.values()) > 1 else ""
        return table(self.tensors(), self.facts, left=3) + values


def show(path: str | os.PathLike[str]) -> Contents:
    """What the checkpoint at `path` holds: tensors with their shapes and blocks, and plain values.

    Parameters
    ----------
    path : the folder of a checkpoint, or safetensors files written by any program

    Examples
    --------
    >>> contents = checkpoint.show(path)  # print it, or let a notebook show it
    >>> contents.tensors()[1]
    ['model/weight', 'float32', '2 x 2', '1', '16 bytes']
    """
    place = place_of(path)
    return Contents(place, read_contents(place))


def metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save` was given as `metadata` of the checkpoint at `path`.

    Parameters
    ----------
    path : the folder of a checkpoint

    Examples
    --------
    >>> checkpoint.save("measured", {"x": torch.ones(2)}, metadata={"loss": 0.25, "commit": "1a2b3c"})
    >>> checkpoint.metadata("measured")
    {'loss': 0.25, 'commit': '1a2b3c'}
    """
    return {name: decoded(value) for name, value in read_contents(place_of(path)).metadata.items()}


def _readable(size: int) -> str:
    from rich.filesize import decimal

    return decimal(size)


def _columns(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    spelt = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in spelt)
