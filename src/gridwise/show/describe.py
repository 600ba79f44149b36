"""`describe`: a table of a model's tensors and their sizes, real or deferred, in all and per worker of a grid.

The table is data (`Description.rows`); it prints in a terminal through rich and in notebooks as HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gridwise.fake import is_fake
from gridwise.grid import Box, Layout
from gridwise.tables import PrintsAsTables, readable

Layouts = Callable[[str, torch.Size, int], Sequence[slice] | Box | None] | Mapping[str, Layout]
COLUMNS = ("name", "kind", "shape", "dtype", "bytes")


@dataclass(frozen=True)
class Row:
    """One parameter or buffer; `size` is None until a lazy module knows its shape, `tied` names the tensor it shares."""

    name: str
    kind: str
    shape: tuple[int, ...] | None
    dtype: torch.dtype
    size: int | None  # bytes of the whole tensor
    worker_sizes: tuple[int, ...]  # bytes of each worker's block; empty without a layout
    deferred: bool
    tied: str | None = None

    @property
    def worker_size(self) -> int | None:
        """Bytes of the largest block."""
        return max(self.worker_sizes, default=None)


@dataclass(frozen=True, repr=False)
class Description(PrintsAsTables):
    """A model's tensors; prints as a table."""

    _words, _has_total = 4, True
    title: str
    rows: tuple[Row, ...]
    workers: int | None = None

    @property
    def parameters(self) -> int:
        """Number of parameters, tied ones once."""
        return sum((row.size or 0) // row.dtype.itemsize for row in self._own() if row.kind == "parameter")

    @property
    def bytes(self) -> int:
        """Bytes of all parameters and buffers, tied ones once."""
        return sum(row.size or 0 for row in self._own())

    @property
    def bytes_per_worker(self) -> int:
        """Bytes of the worker that holds most; a tensor that is not cut counts in full."""
        sizes = [row.worker_sizes for row in self._own() if row.worker_sizes]
        return max(map(sum, zip(*sizes, strict=True)), default=0)

    def _own(self) -> Iterator[Row]:
        return (row for row in self.rows if row.tied is None)

    def _tables(self) -> list[tuple[list[list[str]], str]]:
        columns = list(COLUMNS) + (["per worker"] if self.workers else [])
        table = [columns]
        for row in self.rows:
            kind = f"{row.kind}, deferred" if row.deferred else row.kind
            shape = "not known yet" if row.shape is None else str(tuple(row.shape))
            size = f"= {row.tied}" if row.tied else _readable(row.size)
            cells = [row.name, kind, shape, str(row.dtype).removeprefix("torch."), size]
            table.append(cells + ([_readable(None if row.tied else row.worker_size)] if self.workers else []))
        total = ["total", f"{self.parameters:,} parameters", "", "", readable(self.bytes)]
        table.append(total + ([readable(self.bytes_per_worker)] if self.workers else []))
        return [(table, self.title)]

    def __repr__(self) -> str:
        return str(self)


def describe(
    module: nn.Module,
    layout: Layouts | None = None,
    workers: int | None = None,
) -> Description:
    """A table of the parameters and buffers of a module, which may be deferred.

    Parameters
    ----------
    module
        Any module.
    layout
        How tensors are cut: a function `(name, shape, rank) -> slices`, or a mapping from names to layouts of
        `gridwise.grid`. What it does not cut (None, or no such name) is whole on every worker.
    workers
        The number of workers that `layout` is for.

    Examples
    --------
    >>> table = gridwise.describe(torch.nn.Linear(3, 2))
    >>> [(row.name, tuple(row.shape)) for row in table.rows]
    [('weight', (2, 3)), ('bias', (2,))]
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"describe: `module` has to be a torch.nn.Module, it is a {type(module).__name__}.")
    if (layout is None) != (workers is None):
        raise ValueError("describe: `layout` and `workers` are given together, or neither is.")
    rows: list[Row] = []
    first: dict[int, str] = {}
    named: list[tuple[str, tuple[str, Tensor]]] = [
        ("parameter", p) for p in module.named_parameters(remove_duplicate=False)
    ]
    named += [("buffer", b) for b in module.named_buffers(remove_duplicate=False)]
    for kind, (name, tensor) in named:
        tied = first.get(id(tensor))
        first.setdefault(id(tensor), name)
        rows.append(_row(name, kind, tensor, tied, layout, workers or 0))
    return Description(type(module).__qualname__, tuple(rows), workers)


def _row(name: str, kind: str, tensor: Tensor, tied: str | None, layout: Layouts | None, workers: int) -> Row:
    deferred = is_fake(tensor)
    if is_lazy(tensor):
        return Row(name, kind, None, tensor.dtype, None, (), deferred, tied)
    size = tensor.numel() * tensor.element_size()
    blocks: list[int] = []
    if layout is not None:
        blocks = [_block_elements(layout, rank, name, tensor.shape) * tensor.element_size() for rank in range(workers)]
    return Row(name, kind, tuple(tensor.shape), tensor.dtype, size, tuple(blocks), deferred, tied)


def _block_elements(layout: Layouts, rank: int, name: str, shape: torch.Size) -> int:
    block = (
        (layout[name].block(rank) if name in layout else None)
        if isinstance(layout, Mapping)
        else layout(name, shape, rank)
    )
    slices = block.slices if isinstance(block, Box) else block
    elements = 1
    for dim, size in enumerate(shape):
        chosen = slices[dim] if slices is not None and dim < len(slices) else slice(None)
        elements *= len(range(*chosen.indices(size)))
    return elements


def _readable(size: int | None) -> str:
    return "" if size is None else readable(size)
