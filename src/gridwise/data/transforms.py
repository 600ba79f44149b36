"""Random transforms, the same on all workers that hold a part of a sample.

Each draws from a generator of its own, seeded by the loader's seed, the epoch, the sample and the transform's position
in the list, but not by the worker or by what was read before. So a sample is the same on any grid, and after resuming.

A transform of *places* (`RandomCrop`, `RandomFlip`) chooses a region of the sample before anything is read; each worker
then reads its block of that region. A transform of *values* is any function ``f(blocks, generator)`` that returns
blocks of the same shapes; it sees one worker's blocks, so what it does to an element must not depend on its position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..comm.agreement import key_of
from ..errors import PartitionError
from ..grid import Region, Shape, whole_numbers

ValueTransform = Callable[[Any, torch.Generator], Any]


class PlaceTransform(ABC):
    """A choice of a region of each sample, the same in the last dims of all its tensors.

    Parameters
    ----------
    fields : which tensors of a sample it applies to, by number; None for all
    """

    def __init__(self, fields: Iterable[int] | None = None) -> None:
        self.fields = None if fields is None else whole_numbers(fields, "fields")

    def __call__(self, regions: Sequence[Region], generator: torch.Generator) -> list[Region]:
        """The regions of a sample's tensors, after this transform."""
        chosen = [regions[i] for i in self._chosen(len(regions))]
        drawn = iter(self._drawn(chosen, generator))
        return [next(drawn) if i in self._chosen(len(regions)) else region for i, region in enumerate(regions)]

    def shapes_after(self, shapes: Sequence[Shape]) -> list[Shape]:
        """The shapes of a sample's tensors after this transform; raises if it does not fit them."""
        regions = self([Region.whole(shape) for shape in shapes], torch.Generator(device="cpu").manual_seed(0))
        return [region.shape for region in regions]

    def _chosen(self, count: int) -> tuple[int, ...]:
        if self.fields is None:
            return tuple(range(count))
        if any(not 0 <= i < count for i in self.fields):
            raise PartitionError(f"{type(self).__name__}: `fields` (={self.fields}) must name some of {count} tensors.")
        return self.fields

    @abstractmethod
    def _drawn(self, regions: Sequence[Region], generator: torch.Generator) -> list[Region]: ...


class RandomCrop(PlaceTransform):
    """A part of this size at a random place, in the last dims of each sample. Only that part is read.

    Parameters
    ----------
    size : how many rows of each of the last dims
    fields : which tensors of a sample are cropped; None for all

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> images = torch.arange(128.0).reshape(2, 1, 8, 8)
    >>> crop = gridwise.data.RandomCrop((4, 4))
    >>> gridwise.data.BlockDataset(images, P_x, transforms=[crop])[0].shape
    torch.Size([1, 4, 4])
    """

    def __init__(self, size: Iterable[int], fields: Iterable[int] | None = None) -> None:
        super().__init__(fields)
        self.size = whole_numbers(size, "size")
        if not self.size or min(self.size) < 1:
            raise PartitionError(f"RandomCrop: `size` (={self.size}) needs at least 1 row in each of some dims.")

    def _drawn(self, regions: Sequence[Region], generator: torch.Generator) -> list[Region]:
        last = len(self.size)
        extents = {region.shape[-last:] for region in regions}
        if len(extents) != 1 or any(n < m for n, m in zip(*extents, self.size, strict=False)) or len(*extents) != last:
            raise PartitionError(
                f"RandomCrop: `size` (={self.size}) does not lie in the last dims of tensors of shapes "
                f"{[region.shape for region in regions]}, which must be alike.\n"
                "  fix: a smaller size, or `fields` for those to be cropped."
            )
        (extent,) = extents
        offsets = [_whole(n - m + 1, generator) for n, m in zip(extent, self.size, strict=True)]
        for d, (offset, rows) in enumerate(zip(offsets, self.size, strict=True), start=-last):
            regions = [region.cropped(len(region.shape) + d, offset, rows) for region in regions]
        return list(regions)

    def __repr__(self) -> str:
        return f"RandomCrop({self.size}, fields={self.fields})"


class RandomFlip(PlaceTransform):
    """The sample mirrored along each of these dims, with probability `p` each. A worker reads the mirrored block.

    Parameters
    ----------
    dims : of the sample, counted from its end: -1 is the last
    p : the probability of a flip, for each dim
    fields : which tensors of a sample are flipped; None for all

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> rows = torch.arange(3.0).reshape(1, 3)
    >>> gridwise.data.BlockDataset(rows, P_x, transforms=[gridwise.data.RandomFlip([-1], p=1.0)])[0]
    tensor([2., 1., 0.])
    """

    def __init__(self, dims: Iterable[int], p: float = 0.5, fields: Iterable[int] | None = None) -> None:
        super().__init__(fields)
        self.dims, self.p = whole_numbers(dims, "dims"), float(p)
        if any(d >= 0 for d in self.dims) or not 0 <= self.p <= 1:
            raise PartitionError(
                f"RandomFlip: `dims` (={self.dims}) must count from the end (-1 is the last), `p` (={p}) lie in [0, 1]."
            )

    def _drawn(self, regions: Sequence[Region], generator: torch.Generator) -> list[Region]:
        if any(len(region.shape) < -d for d in self.dims for region in regions):
            raise PartitionError(
                f"RandomFlip: `dims` (={self.dims}) are not all in tensors of shapes {[r.shape for r in regions]}.\n"
                "  fix: `fields` for those to be flipped."
            )
        for d in self.dims:
            if float(torch.rand((), generator=generator, device="cpu", dtype=torch.float64)) < self.p:
                regions = [region.flipped(len(region.shape) + d) for region in regions]
        return list(regions)

    def __repr__(self) -> str:
        return f"RandomFlip({self.dims}, p={self.p}, fields={self.fields})"


def generator_of(seed: int, epoch: int, sample: int, place: int) -> torch.Generator:
    """The generator of the transform at this place in the list, for this sample in this epoch."""
    return torch.Generator(device="cpu").manual_seed(key_of(f"{seed} {epoch} {sample} {place}"))


def _whole(stop: int, generator: torch.Generator) -> int:
    return int(torch.randint(stop, (), generator=generator, device="cpu"))
