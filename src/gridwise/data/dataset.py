"""Samples on a grid: each worker reads its block of each sample, and nothing else.

    a batch of samples 5, 2, 7, 0       axis 0 of the grid cuts the batch: the first worker takes 5 and 2, ...
    each of shape (channel, *space)     the other axes cut the samples: ... and its block of both

The blocks are those of the tensor (batch, channel, *space) on the partition, as `Layout.balanced` cuts it, so a model
on the same partition takes them as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import DataError, PartitionError
from ..grid import Box, Layout, Shape, union_of, whole_numbers
from ..partition import CartesianPartition, Partition, PartitionLike, as_partition, as_partitions, zero_volume_tensor
from .agreement import together
from .reader import Field, ReadRequest, SampleReader
from .samples import as_samples
from .transforms import PlaceTransform, ValueTransform

EDGES = ("clip", "zeros")
Halo = tuple[tuple[int, int], ...]
Rows = int | Sequence[int | Sequence[int]]
"""Rows of a halo: one number for all dims from the third on, or for each dim a number or a pair (before, after)."""


class BlockDataset:
    """Samples of which each worker reads its block.

    All workers of the partitions create it together: they compare what they have opened, so that a file that is missing
    or different on one of them is an error on all.

    Parameters
    ----------
    arrays : the samples: an array with the samples along `sample_dim`, or a list with one array per sample. An array is
        a path (.npy, HDF5, NIfTI, a folder of Zarr or OME-Zarr), the result of `open_array`, or any object with shape,
        dtype and slicing. A tuple of these makes each sample a tuple of tensors: inputs and targets
    P_x : where a batch ``(batch, *dims of a sample)`` lies: a partition, or the shape of a grid of all workers; a tuple
        for a tuple of arrays. On a partition without a grid, every worker has all of it
    halo : how many more rows to read around the block: a number, for all dims from the third on, or a pair (before,
        after) for each dim of the batch. A tuple for a tuple of arrays
    edges : what a halo is beyond the edges of the sample: "clip", nothing, so that blocks there are smaller; or "zeros",
        after all transforms. A tuple for a tuple of arrays
    sample_dim : the dim of an array along which the samples lie: a number, or a name of a DataArray of xarray
    add_channel : whether samples get a first dim of one row, for images without channels
    dtype : of the batches; None for that of the array
    transforms : applied to each sample in turn, see `gridwise.data.transforms`: `RandomCrop`, `RandomFlip`, functions
        of blocks

    Attributes
    ----------
    shapes : of a sample's tensors as they are in a batch: cropped, and with the added channel

    Examples
    --------
    >>> dataset = gridwise.data.BlockDataset(torch.arange(24.0).reshape(4, 1, 6), (1, 1, 1))
    >>> len(dataset), dataset.read([2, 0]).shape
    (4, torch.Size([2, 1, 6]))
    """

    def __init__(
        self,
        arrays: Any,
        P_x: PartitionLike | Sequence[PartitionLike],
        halo: Rows | tuple[Rows | None, ...] | None = None,
        *,
        edges: str | Sequence[str] = "clip",
        sample_dim: int | str | Sequence[int | str] = 0,
        add_channel: bool | Sequence[bool] = False,
        dtype: torch.dtype | Sequence[torch.dtype | None] | None = None,
        transforms: Iterable[PlaceTransform | ValueTransform] = (),
    ) -> None:
        self.is_tuple = isinstance(arrays, tuple)
        given = arrays if isinstance(arrays, tuple) else (arrays,)
        found = as_partitions(P_x, "BlockDataset") if self.is_tuple else as_partition(P_x, "BlockDataset")
        self.partitions: list[Partition] = self._each("P_x", found, len(given))
        self.transport = self.partitions[0].transport
        self.team = union_of([P.geometry for P in self.partitions])
        halos, dims = self._each("halo", halo, len(given)), self._each("sample_dim", sample_dim, len(given))
        channels, dtypes = self._each("add_channel", add_channel, len(given)), self._each("dtype", dtype, len(given))
        self.halos = [_halo(wish, P) for wish, P in zip(halos, self.partitions, strict=True)]
        self.edges: list[str] = self._each("edges", edges, len(given))
        if not set(self.edges) <= set(EDGES):
            raise PartitionError(f"BlockDataset: `edges` (={edges!r}) must be one of {', '.join(map(repr, EDGES))}.")
        listed = list(transforms)

        def opened() -> SampleReader:
            found = [as_samples(array, dim) for array, dim in zip(given, dims, strict=True)]
            kinds = [
                wish or torch.from_numpy(np.empty(0, s.dtype)).dtype for wish, s in zip(dtypes, found, strict=True)
            ]
            reader = SampleReader([Field(*of) for of in zip(found, map(bool, channels), kinds, strict=True)], listed)
            self._check(reader)
            return reader

        self.reader = together(self.transport, self.team, "BlockDataset", opened, self._spelt)
        self.shapes = self.reader.shapes()
        self._boxes: dict[int, tuple[Box, ...]] = {}

    def __len__(self) -> int:
        return len(self.reader.fields[0].samples)

    def __getitem__(self, sample: int) -> Tensor | tuple[Tensor, ...]:
        """This worker's block of a sample, without a batch dim; axis 0 of the grid, which cuts batches, plays no part."""
        if not -len(self) <= sample < len(self):
            raise IndexError(f"there are {len(self)} samples, and no sample {sample}.")
        boxes = [self._box(number, 1, uncut=True) for number in range(len(self.shapes))]
        request = ReadRequest((sample % len(self),), tuple(boxes), 0, 0)
        blocks = zip(self._padded(self.reader.read(request), 1, uncut=True), self.partitions, strict=True)
        return self._returned([block[0] if P.active else zero_volume_tensor(None, block.dtype) for block, P in blocks])

    def read(self, samples: Iterable[int], epoch: int = 0, seed: int = 0) -> Any:
        """This worker's part of a batch of these samples: a tensor, or a tuple of them.

        `epoch` and `seed` determine what random transforms do. Nothing is sent: errors are raised on this worker alone.
        """
        request = self.request(samples, epoch, seed)
        return self.finished(self.reader.read(request), len(request.samples))

    def request(self, samples: Iterable[int], epoch: int, seed: int) -> ReadRequest:
        """What this worker has to read of a batch."""
        wanted = whole_numbers(samples, "samples")
        wrong = [sample for sample in wanted if not 0 <= sample < len(self)]
        if wrong:
            raise DataError(f"there are {len(self)} samples, and no sample {wrong[0]}.")
        return ReadRequest(wanted, self.boxes(len(wanted)), epoch, seed)

    def boxes(self, count: int) -> tuple[Box, ...]:
        """This worker's box of each tensor of a batch of `count` samples."""
        if count not in self._boxes:
            self._boxes[count] = tuple(self._box(number, count) for number in range(len(self.shapes)))
        return self._boxes[count]

    def finished(self, blocks: Sequence[Tensor], count: int) -> Any:
        """The blocks of a batch of `count` samples, as the loader returns them; empty on a worker outside the grid."""
        return self._returned(
            [
                block if P.active else zero_volume_tensor(count, block.dtype)
                for block, P in zip(self._padded(blocks, count), self.partitions, strict=True)
            ]
        )

    def empty(self, request: ReadRequest) -> list[Tensor]:
        """Zeros in place of a batch that could not be read."""
        kinds = [field.dtype for field in self.reader.fields]
        return [torch.zeros(box.shape, dtype=kind) for box, kind in zip(request.boxes, kinds, strict=True)]

    def _padded(self, blocks: Sequence[Tensor], count: int, uncut: bool = False) -> list[Tensor]:
        """The blocks with their halos beyond the edges of the sample, where these are asked for."""
        return [
            block if edge == "clip" else pad(block, self._beyond(number, count, uncut))
            for number, (block, edge) in enumerate(zip(blocks, self.edges, strict=True))
        ]

    def _beyond(self, number: int, count: int, uncut: bool) -> list[int]:
        """The rows of a halo that lie beyond the edges, as torch's `pad` takes them: those of the last dim first."""
        P, shape = self.partitions[number], (count, *self.shapes[number])
        if not P.active or not isinstance(P, CartesianPartition):
            return [0, 0]
        box = self._own(P, shape, count, uncut)
        sides = (
            (max(0, before - a), max(0, b + after - n)) if b > a else (0, 0)
            for a, b, (before, after), n in zip(box.start, box.stop, self.halos[number], shape, strict=True)
        )
        return [rows for side in reversed(list(sides)) for rows in side]

    def _returned(self, blocks: list[Tensor]) -> Any:
        return tuple(blocks) if self.is_tuple else blocks[0]

    def _box(self, number: int, count: int, uncut: bool = False) -> Box:
        """This worker's box of a batch of `count` samples; `uncut`: as if axis 0 of the grid did not cut it."""
        P, shape = self.partitions[number], (count, *self.shapes[number])
        if not P.active:
            return Box.of_shape((0,) * len(shape))
        if not isinstance(P, CartesianPartition):
            return Box.of_shape(shape)
        return self._own(P, shape, count, uncut).grown(self.halos[number], shape)

    def _own(self, P: CartesianPartition, shape: Shape, count: int, uncut: bool) -> Box:
        """This worker's box without its halo."""
        box = Layout.balanced(P.geometry, shape).block(P.transport.rank)
        return Box((0, *box.start[1:]), (count, *box.stop[1:])) if uncut else box

    # Arguments

    def _each(self, name: str, value: object, count: int) -> list[Any]:
        """The value of an argument for each of the arrays."""
        if not self.is_tuple or not isinstance(value, tuple | list):
            return [value] * count
        if len(value) != count:
            raise PartitionError(
                f"BlockDataset: `{name}` needs one entry for each of {count} arrays, got {len(value)}."
            )
        return list(value)

    def _check(self, reader: SampleReader) -> None:
        """Raise unless the arrays have equally many samples, batches a dim for each axis, and the transforms fit."""
        lengths = [f"{field.samples.label}: {len(field.samples)}" for field in reader.fields]
        if len({len(field.samples) for field in reader.fields}) > 1:
            raise DataError("the arrays of one dataset need as many samples each.", lengths)
        for field, P, shape in zip(reader.fields, self.partitions, reader.shapes(), strict=True):
            if isinstance(P, CartesianPartition) and P.dim != 1 + len(shape):
                raise DataError(
                    f"{field.samples.label}: a batch of samples of shape {shape} has {1 + len(shape)} dims, its grid "
                    f"{P.shape} has {P.dim} axes.",
                    fix="use 1 for the axes of dims that are not cut; axis 0 is that of the batch; add_channel=True adds a "
                    "dim for channels.",
                )
        batch_axes = {P.shape[0] if isinstance(P, CartesianPartition) else 1 for P in self.partitions}
        ranks = {P.ranks for P in self.partitions}
        if reader.has_value_transforms and (len(batch_axes) > 1 or len(ranks) > 1):
            raise DataError(
                "a function of a sample's blocks needs all of them on the same worker: give all partitions the same workers, "
                "and as many along axis 0."
            )

    def _spelt(self, reader: SampleReader) -> str:
        fields = [
            f"{len(f.samples)} samples of {s} {f.dtype}" for f, s in zip(reader.fields, reader.shapes(), strict=True)
        ]
        halos = [f"halo {halo}, edges {edge!r}" for halo, edge in zip(self.halos, self.edges, strict=True)]
        grids = [f"{P.shape} with {halo}" for P, halo in zip(self.partitions, halos, strict=True)]
        kinds = [t if isinstance(t, PlaceTransform) else "a function" for t in reader.transforms]
        return f"{'; '.join(fields)}; on {'; '.join(grids)}; {kinds}"


def _halo(wish: Rows | None, P: Partition) -> Halo:
    """The rows before and after the block, for each dim."""
    if not isinstance(P, CartesianPartition):
        if wish is not None:
            raise PartitionError(
                "BlockDataset: on a partition without a grid every worker has all: there is no `halo`."
            )
        return ()
    if wish is None or isinstance(wish, int):
        rows = wish or 0
        pairs: Halo = tuple((rows, rows) if d > 1 else (0, 0) for d in range(P.dim))
    else:
        pairs = tuple(_pair(pair) for pair in wish)
    if len(pairs) != P.dim or any(min(pair) < 0 for pair in pairs) or pairs[0] != (0, 0):
        raise PartitionError(
            f"BlockDataset: `halo` (={wish!r}) must be a number of rows, or a pair (before, after) for each of {P.dim} dims, "
            "none for the batch."
        )
    return pairs


def _pair(given: int | Sequence[int]) -> tuple[int, int]:
    before, after = whole_numbers((given, given) if isinstance(given, int) else given, "halo")
    return before, after
