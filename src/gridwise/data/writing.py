"""Write results to a file, block by block: no worker ever holds more than its part.

    blocks on P_x ──► cut where the file's chunks are cut ──► each worker writes its chunks ──► all have written?
                 └──► HDF5: to its one writer, a block at a time

Two workers never write one chunk: blocks that share one are repartitioned first. A file gets its name when it is complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, PartitionError
from ..grid import Box, Grid, Layout, aligned_cuts, whole_numbers
from ..grid.arrange import arranged
from ..local_path import local_path
from ..nn.engine.agreement import agree_layout
from ..nn.functional import repartition
from ..partition import CartesianPartition, PartitionLike, as_partition
from .agreement import together
from .order import consecutive
from .sources import reading
from .targets import NewFile, chunks_for, target_of


class BlockWriter:
    """Writes an array whose blocks lie on a grid: a batch of samples at a time, or all at once.

    All workers of the partition create it and call its methods together.

    Parameters
    ----------
    path : ending in .zarr, .npy, .h5 or .hdf5 (there the dataset is called "data")
    shape : of everything that will be written: ``(samples, *dims of a sample)``
    P_x : where the blocks lie, a partition or the shape of a grid of all workers: ``(batch, *dims of a sample)``
    dtype : of the file
    chunks : of the file, for Zarr and HDF5; None: about one worker's block of one sample
    overwrite : whether a file of this name may be replaced

    Examples
    --------
    >>> with gridwise.data.BlockWriter("result.npy", (4, 3), (1, 1)) as writer:
    ...     writer.write(torch.ones(2, 3), samples=[0, 2])
    ...     writer.write(torch.zeros(2, 3), samples=[3, 1])
    >>> gridwise.data.BlockDataset("result.npy", (1, 1)).read([0, 1])
    tensor([[1., 1., 1.],
            [0., 0., 0.]])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shape: Sequence[int],
        P_x: PartitionLike,
        dtype: torch.dtype = torch.float32,
        chunks: Sequence[int] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path, self.shape = local_path(path, DataError), whole_numbers(shape, "shape")
        P_x, self.dtype = as_partition(P_x, "BlockWriter"), dtype
        target_of(self.path)  # raises for an ending that is not known
        if not isinstance(P_x, CartesianPartition) or P_x.dim != len(self.shape):
            raise PartitionError(f"BlockWriter: an array of shape {self.shape} needs a partition with as many axes.")
        self.P_x = P_x
        try:
            stored = torch.empty(0, dtype=dtype).numpy().dtype
        except TypeError:
            raise PartitionError(f"BlockWriter: files cannot hold {dtype}.\n  fix: dtype=torch.float32.") from None
        largest = Layout.balanced(P_x.geometry, self.shape).block(P_x.ranks[0]).shape
        wish = whole_numbers(chunks, "chunks") if chunks is not None else chunks_for(largest, stored.itemsize)
        if len(wish) != len(self.shape) or min(wish, default=1) < 1:
            raise PartitionError(
                f"BlockWriter: `chunks` (={wish}) needs at least 1 for each of {len(self.shape)} dims."
            )
        wish = tuple(min(c, max(1, n)) for c, n in zip(wish, self.shape, strict=True))
        self._title = f"BlockWriter({self.path})"
        self._file = NewFile(self.path, self.shape, stored, wish, overwrite)
        self._target = self._file.target
        self._is_open = P_x.active
        self._transport, self._root = P_x.transport, P_x.ranks[0]
        self._is_root = self._transport.rank == self._root
        self._together(lambda: self._file.create() if self._is_root else None)
        self._together(self._target.open)

    def write(self, block: Tensor, samples: Iterable[int] | None = None) -> None:
        """Write a batch, of which this worker has `block`, to the rows `samples` of the file; None: to all of its rows."""
        rows = tuple(range(self.shape[0])) if samples is None else whole_numbers(samples, "samples")
        if not self.P_x.active:
            return
        self._together(lambda: self._check(rows), lambda _: f"rows {rows}")
        x, says = block.detach().to("cpu", self.dtype), self._title
        layout, _ = agree_layout(self._transport, self.P_x.team, says, self.P_x.geometry, x)
        if layout.global_shape != (len(rows), *self.shape[1:]):
            raise DataError(
                f"{says}: a batch of {len(rows)} samples of shape {self.shape[1:]} was asked for, the blocks form a tensor of "
                f"shape {layout.global_shape}."
            )
        if self._target.one_writer:
            self._together(lambda: self._write_by_root(x, layout, rows))
            return
        P, aligned = (self.P_x, layout) if max(self._target.chunks) == 1 else self._aligned(len(rows))
        if aligned != layout:
            x = repartition(x, self.P_x, P, aligned.cuts)
        box = aligned.block(self._transport.rank) if P.active else None
        self._together(lambda: self._write_rows(box, x, rows) if box is not None else None)

    def close(self) -> None:
        """Give the complete file its name."""
        if self._is_open:
            self._is_open = False
            self._together(self._target.close)
            self._together(lambda: self._file.commit() if self._is_root else None)

    def __enter__(self) -> BlockWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # perhaps on this worker alone, so no agreement is possible
            self._is_open = False
            self._target.close()

    # What is written where

    def _aligned(self, count: int) -> tuple[CartesianPartition, Layout]:
        """A partition and a layout for a batch of `count` samples that put each chunk on one worker."""
        P, chunks, shape = self.P_x, self._target.chunks, (count, *self.shape[1:])
        if chunks[0] > 1 and P.shape[0] > 1:  # a chunk spans samples: the batch must not be cut
            counts = tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))
            axes = arranged(counts, P.size, frozenset({0}))
            P = CartesianPartition(P.transport, Grid(P.ranks[: int(np.prod(axes))], axes))
        balanced = Layout.balanced(P.geometry, shape)
        inner = tuple(aligned_cuts(cuts, c) for cuts, c in zip(balanced.cuts[1:], chunks[1:], strict=True))
        return P, Layout(P.geometry, (balanced.cuts[0], *inner))

    def _write_rows(self, box: Box, x: Tensor, rows: Sequence[int]) -> None:
        """Write a block of a batch, consecutive rows of the file in one call."""
        data, first = x.numpy(), box.start[0]
        if not box.volume:
            return
        for place, run in consecutive(rows[first : box.stop[0]], longest=len(rows)):
            there = Box((run[0], *box.start[1:]), (run[-1] + 1, *box.stop[1:]))
            self._target.write(there, data[place : place + len(run)])

    def _write_by_root(self, x: Tensor, layout: Layout, rows: Sequence[int]) -> None:
        """Send the blocks in turn to the worker that writes; if writing fails, it still receives the rest."""
        failed: Exception | None = None
        for rank, box in layout.blocks():
            part = x.contiguous()
            if rank != self._root and box.volume:
                if self._is_root:
                    part = torch.empty(box.shape, dtype=self.dtype)
                    self._transport.exchange([], [(rank, part)], self._title)
                elif rank == self._transport.rank:
                    self._transport.exchange([(self._root, part)], [], self._title)
            if self._is_root and failed is None:
                try:
                    self._write_rows(box, part, rows)
                except Exception as error:
                    failed = error
        if failed is not None:
            raise failed

    def _check(self, rows: Sequence[int]) -> None:
        if not self._is_open:
            raise DataError(f"{self._title} is closed.")
        wrong = [row for row in rows if not 0 <= row < self.shape[0]]
        if wrong or len(set(rows)) != len(rows):
            raise DataError(
                f"{self._title}: `samples` (={tuple(rows)}) must be different numbers of the {self.shape[0]} samples."
            )

    def _together(self, step: Callable[[], object], says: Callable[[object], str] = lambda _: "") -> None:
        def named() -> None:
            with reading(str(self.path), "written"):
                step()

        if self.P_x.active:
            together(self._transport, self.P_x.team, self._title, named, says)
