"""Read one worker's part of a batch, and transform it. That takes only boxes, no workers, so any process can do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, GridwiseError
from ..grid import Box, Region, Shape
from .order import consecutive
from .samples import Samples
from .sources import Slices
from .transforms import PlaceTransform, ValueTransform, generator_of


@dataclass(frozen=True)
class Field:
    """One tensor of each sample: where it comes from, and how it is converted."""

    samples: Samples
    add_channel: bool
    dtype: torch.dtype
    """Its dtype in a batch."""

    @property
    def shape(self) -> Shape:
        """The shape of a sample as it is stored, with the added channel."""
        return (1, *self.samples.shape) if self.add_channel else self.samples.shape

    def read(self, first: int, slices: Slices, out: np.ndarray) -> None:
        """Fill `out` with the box `slices`, in the dims of `shape`, of samples `first`, `first` + 1, ..."""
        if not self.add_channel:
            self.samples.read(first, slices, out)
        elif out.size:
            self.samples.read(first, slices[1:], out[:, 0])


class ReadRequest(NamedTuple):
    """A batch, and this worker's box of each of its tensors: (rows of the batch, *dims of a sample)."""

    samples: tuple[int, ...]
    boxes: tuple[Box, ...]
    epoch: int
    seed: int


Batch = list[Tensor] | Exception
"""A worker's part of a batch, or the error that prevented it."""


class SampleReader:
    """All fields of a dataset, and its transforms."""

    def __init__(self, fields: Sequence[Field], transforms: Sequence[PlaceTransform | ValueTransform]) -> None:
        self.fields, self.transforms = tuple(fields), tuple(transforms)
        self.has_place_transforms = any(isinstance(t, PlaceTransform) for t in transforms)
        self.has_value_transforms = not all(isinstance(t, PlaceTransform) for t in transforms)

    def shapes(self) -> list[Shape]:
        """The shapes of a sample's tensors after the transforms."""
        shapes = [field.shape for field in self.fields]
        for transform in self.transforms:
            if isinstance(transform, PlaceTransform):
                shapes = transform.shapes_after(shapes)
        return shapes

    def read(self, request: ReadRequest) -> list[Tensor]:
        """This worker's part of a batch."""
        blocks = [self._block(number, request) for number in range(len(self.fields))]
        if self.has_value_transforms:
            rows = request.boxes[0].start[0]
            for row in range(len(blocks[0])):
                self._change([block[row] for block in blocks], request, request.samples[rows + row])
        return blocks

    def _block(self, number: int, request: ReadRequest) -> Tensor:
        """This worker's part of one tensor, before its values are transformed."""
        field, box = self.fields[number], request.boxes[number]
        out = np.empty(box.shape, field.samples.dtype)
        inner = Box(box.start[1:], box.stop[1:])
        mine = request.samples[box.start[0] : box.stop[0]]
        for row, run in consecutive(mine, longest=1 if self.has_place_transforms else len(mine)):
            rows = out[row : row + len(run)]
            if self.has_place_transforms:
                self._read_region(field, self._regions(request, run[0])[number], inner, run[0], rows)
            else:
                field.read(run[0], inner.slices, rows)
        return torch.from_numpy(out).to(field.dtype)

    def _read_region(self, field: Field, region: Region, box: Box, sample: int, out: np.ndarray) -> None:
        turned = tuple(d + 1 for d in region.mirrored_dims)
        found = np.empty_like(out) if turned else out
        field.read(sample, region.source_of(box).slices, found)
        if turned:
            np.copyto(out, np.flip(found, turned))

    def _regions(self, request: ReadRequest, sample: int) -> list[Region]:
        regions = [Region.whole(field.shape) for field in self.fields]
        for place, transform in enumerate(self.transforms):
            if isinstance(transform, PlaceTransform):
                regions = transform(regions, generator_of(request.seed, request.epoch, sample, place))
        return regions

    def _change(self, blocks: list[Tensor], request: ReadRequest, sample: int) -> None:
        """Transform the values of one sample's blocks, in place."""
        for place, transform in enumerate(self.transforms):
            if isinstance(transform, PlaceTransform):
                continue
            try:
                made = transform(
                    tuple(blocks) if len(blocks) > 1 else blocks[0],
                    generator_of(request.seed, request.epoch, sample, place),
                )
            except GridwiseError:
                raise
            except Exception as error:
                raise DataError(f"transform {place} of sample {sample}: {type(error).__name__}: {error}") from error
            results = (made,) if len(blocks) == 1 else tuple(made)
            found = [(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else type(x) for x in results]
            if found != [(tuple(x.shape), x.dtype) for x in blocks]:
                raise DataError(
                    f"transform {place} of sample {sample} has made {found} of {[(tuple(x.shape), x.dtype) for x in blocks]}: "
                    "it must return blocks of the same shapes and dtypes."
                )
            for block, result in zip(blocks, results, strict=True):
                block.copy_(result)


def tried(reader: SampleReader, request: ReadRequest) -> Batch:
    """What the reader gives, or its error."""
    try:
        return reader.read(request)
    except Exception as error:
        return error
