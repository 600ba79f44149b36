"""Where results go, by the user's wish: arrays that can be written to, and files that get their name when they are complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.sources import reading
from ..data.targets import CHUNK_BYTES, NewFile, chunks_for
from ..errors import DataError, PartitionError, UnsupportedError
from ..grid import Box, Shape
from ..local_path import local_path
from .arrays import StoredArray
from .cuts import middle
from .graph import GlobalValue
from .schedule import Schedule

LEAST_CHUNK = 1 << 18
"""Bytes of a file's chunk, unless it holds a whole array; smaller ones would make too many files."""


class ToTarget(StoredArray):
    """An array of the user's, of any library, or a new file, to which boxes are written; it is not read."""

    def __init__(self, target: Any, shape: Shape) -> None:
        self.target, self.shape = target, shape
        self.own = target.target.shape if isinstance(target, NewFile) else tuple(target.shape)
        self.label = str(target.path) if isinstance(target, NewFile) else f"an array of type {type(target).__name__}"

    def read(self, box: Box, device: torch.device) -> Tensor:
        raise TypeError("a target is only written")

    def write(self, box: Box, x: Tensor) -> None:
        lead = len(self.shape) - len(self.own)  # leading dims of extent 1, which the target lacks
        there = Box(box.start[lead:], box.stop[lead:])
        data = x.detach().to("cpu").reshape(there.shape)
        if isinstance(self.target, Tensor):
            self.target[there.slices].copy_(data)
            return
        numbers = (data.float() if data.dtype == torch.bfloat16 else data).resolve_conj().resolve_neg().numpy()
        with reading(self.label, "written"):
            if isinstance(self.target, NewFile):
                self.target.target.write(there, numbers)
            else:
                self.target[there.slices or ...] = numbers


class ReadableTarget(StoredArray):
    """An array that is read, and a target that gets the same."""

    def __init__(self, own: StoredArray, target: StoredArray) -> None:
        self.own, self.target, self.shape = own, target, own.shape

    def read(self, box: Box, device: torch.device) -> Tensor:
        return self.own.read(box, device)

    def fetch(self, box: Box, device: torch.device) -> Tensor:
        return self.own.fetch(box, device)

    def write(self, box: Box, x: Tensor) -> None:
        self.own.write(box, x)
        self.target.write(box, x)

    def release(self) -> None:
        self.own.release()


def targets_for(says: str, schedule: Schedule, out: Any, lacking: int, overwrite: bool) -> dict[GlobalValue, ToTarget]:
    """Where each output is written; a new file lacks leading dims of extent 1 that the inputs were `lacking` too."""
    if out is None:
        return {}
    outputs = schedule.graph.outputs
    places = list(out) if isinstance(out, list | tuple) else [out]
    if len(places) != len(outputs):
        raise PartitionError(f"{says}: `out` has {len(places)} arrays, the call returns {len(outputs)} tensors.")
    found: dict[GlobalValue, ToTarget] = {}
    for place, value in zip(places, outputs, strict=True):
        if value.by is None:
            raise UnsupportedError(f"{says}: an output is an input itself, and is not written to `out`.")
        if isinstance(place, str | os.PathLike):
            place = _new_file(local_path(place, DataError), value, schedule, lacking, overwrite)
        else:
            lead = len(value.shape) - len(place.shape)
            if lead < 0 or (1,) * lead + tuple(place.shape) != value.shape:
                raise PartitionError(
                    f"{says}: `out` (of shape {tuple(place.shape)}) must have the output's shape {value.shape}."
                )
            _refuse_array(says, place, value.spec.dtype)
        found[value] = ToTarget(place, value.shape)
    return found


def _refuse_array(says: str, place: Any, dtype: torch.dtype) -> None:
    """Raise unless an array can be written to, and numbers of this dtype keep their kind in it, as torch has it."""
    flags = getattr(place, "flags", None)
    if flags is not None and not getattr(flags, "writeable", True):
        raise PartitionError(f"{says}: `out` is an array that cannot be written to.", fix="give a copy of it.")
    held: torch.dtype | None = place.dtype if isinstance(place, Tensor) else None
    if held is None:
        with contextlib.suppress(TypeError, AttributeError):  # of a library with dtypes of its own
            held = torch.from_numpy(np.empty(0, place.dtype)).dtype
    if held is not None and not torch.can_cast(dtype, held):
        raise PartitionError(
            f"{says}: `out` holds {held}, which cannot take the output's {dtype}.", fix=f"an array of {dtype}."
        )


def _new_file(path: Path, value: GlobalValue, schedule: Schedule, lacking: int, overwrite: bool) -> NewFile:
    lead = 0
    while lead < min(lacking, len(value.shape)) and value.shape[lead] == 1:
        lead += 1
    dtype = torch.float32 if value.spec.dtype == torch.bfloat16 else value.spec.dtype
    try:
        stored = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    except TypeError:
        raise UnsupportedError(f"{path}: files cannot hold {dtype}.\n  fix: cast the model's output.") from None
    shape = value.shape[lead:]
    stage = next((each for each in schedule.stages if value in each.roots), None)
    tile = shape if stage is None or stage.whole is not None else middle(stage.shape, stage.counts).shape[lead:]
    return NewFile(path, shape, stored, _chunks(shape, tile, stored.itemsize), overwrite)


def _chunks(shape: Shape, tile: Shape, itemsize: int) -> Shape:
    """Chunks of a file of which tiles write whole ones where they can: parts of a tile, or several of them."""
    if not shape:
        return ()
    chunks = [min(n, max(1, size)) for n, size in zip(shape, chunks_for((1, *tile), itemsize)[1:], strict=True)]
    for d in reversed(range(len(shape))):
        while chunks[d] < shape[d] and 2 * int(np.prod(chunks)) * itemsize <= min(LEAST_CHUNK, CHUNK_BYTES):
            chunks[d] = min(shape[d], 2 * chunks[d])
    return tuple(max(1, n) for n in chunks)


@contextmanager
def completed(targets: Mapping[GlobalValue, ToTarget]) -> Iterator[None]:
    """Make new files before the body, and give them their names after it; if it is left by an error, remove them."""
    files = [each.target for each in targets.values() if isinstance(each.target, NewFile)]
    made: list[NewFile] = []
    try:
        for file in files:
            with reading(str(file.path), "written"):
                file.create()
                made.append(file)
                file.target.open()
        yield
        for file in files:
            with reading(str(file.path), "written"):
                file.target.close()
    except BaseException:
        for file in made:
            file.discard()
        raise
    for file in files:
        with reading(str(file.path), "written"):
            file.commit()
