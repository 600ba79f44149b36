"""The partial inverse of maximum pooling: each value goes back to where it came from, by its index in the global tensor.

    y[indices[i]] = x[i],  0 elsewhere          indices as the pooling layers return them: global, one number per place

A value's place lies in its window, so the outputs of a worker come from the inputs whose windows meet them: one movement
fetches these, values and indices, and each worker writes what is its own. An index outside of its window, which torch takes
(it can come from no pooling with these arguments), is refused by all workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...errors import PartitionError, describe
from ...grid import Grid, Layout, Needs, Shape, route, transposed_need
from ...partition import Partition
from ..docstrings import LayerFamily
from ..engine.agreement import Ballot, agree_layout, key_of, tell
from ..engine.carrier import Move
from ..engine.module import Module
from ..windows.windowed_layer import LayersByDims, Size, as_batch

SEQUENTIAL: LayersByDims = {1: torch.nn.MaxUnpool1d, 2: torch.nn.MaxUnpool2d, 3: torch.nn.MaxUnpool3d}


class MaxUnpool(LayerFamily, Module):
    """`torch.nn.MaxUnpool2d` on a grid, of what a pooling layer with the same arguments and `return_indices` returns.

    Parameters
    ----------
    P_x : the partition of input and output, axes (batch, channel, height, width), or without the batch
    kernel_size, stride, padding : as in torch

    Notes
    -----
    A call takes the values, their indices, and `output_size`: the size of the *global* output, the same on all workers.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> pool = gridwise.nn.DistributedMaxPool2d(P_x, 2, return_indices=True)
    >>> gridwise.nn.DistributedMaxUnpool2d(P_x, 2)(*pool(torch.ones(2, 3, 4, 4))).shape
    torch.Size([2, 3, 4, 4])
    """

    dims: ClassVar[int]
    _settings = ("kernel_size", "stride", "padding")
    _fixed = ("P_x",)

    def __init__(self, P_x: Partition, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        template = SEQUENTIAL[self.dims](kernel_size, stride, padding)
        self.P_x = P_x
        self.kernel_size, self.stride, self.padding = template.kernel_size, template.stride, template.padding
        lacking = self.dims + 2 - P_x.dim
        if lacking not in (0, 1):
            raise PartitionError(
                f"{type(self).__name__}: `P_x` (={P_x.shape}) must be a partition with {self.dims + 2} axes (batch, channel "
                f"and {self.dims} of space), or {self.dims + 1} without the batch."
            )
        self._grid = Grid(P_x.ranks, (1,) * lacking + P_x.shape)
        self._takes_part(P_x, signature=self.extra_repr())
        self._source: Layout | None = None

    def __call__(self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Any:
        """The unpooled tensor; `output_size` is that of the *global* output, as torch takes it."""
        return super().__call__(x, indices, None if output_size is None else tuple(output_size))

    # Planning

    def _problem_with(self, input: tuple) -> str | None:
        x, indices, size = input
        if not isinstance(indices, Tensor) or indices.dtype != torch.int64:
            return "needs indices of dtype int64, as pooling returns them"
        if x.shape != indices.shape or x.dim() not in (self.dims + 1, self.dims + 2):
            return (
                f"needs values and indices of one shape, {self.dims + 2} dims or {self.dims + 1} without the batch, got "
                f"{tuple(x.shape)} and {tuple(indices.shape)}"
            )
        if x.dim() == self.dims + 1 and self._grid.shape[0] > 1:
            return (
                f"got a block of shape {tuple(x.shape)} without a batch, but the grid cuts the batch: {self.P_x.shape}"
            )
        if size is not None and not all(isinstance(n, int) for n in size):
            return f"needs whole numbers as `output_size`, got {size!r}"
        known = self._distdl_is_setup and not self._distdl_input_changed(input)
        return self._misplaced(indices) if known else None

    def _distdl_input_changed(self, input: tuple) -> bool:
        return super()._distdl_input_changed(input) or self._asked != input[2]

    def _distdl_module_setup(self, input: tuple) -> None:
        transport, team, (x, indices, size) = self.P_x.transport, self._team, input
        stride = self.kernel_size if self.stride is None else self.stride
        self._kernel, self._stride, self._padding = map(self._each, (self.kernel_size, stride, self.padding))
        ballot = Ballot()
        votes = ballot.equal(int(x.dim() == self.dims + 1)), ballot.equal(key_of(repr(size)))
        ballot.count(transport, team, self._says)
        if None in (ballot.read(vote) for vote in votes):
            reports = tell(transport, team, f"shape {tuple(x.shape)}, output_size={size}")
            raise PartitionError(describe(f"{self._says}: workers differ in dims or `output_size`.", reports, ""))
        self._lead = () if x.dim() == self.dims + 2 else (1,)
        self._asked = size
        source, agreed = agree_layout(transport, team, self._says, self._grid, x.view(*self._lead, *x.shape))
        shape = self._output_shape(source.global_shape, size)
        target = Layout.balanced(self._grid, (*source.global_shape[:2], *shape))
        window = zip(self._kernel, self._stride, self._padding, source.global_shape[2:], strict=True)
        space = tuple(
            tuple(transposed_need(outputs, k, s, p, 1, n) for outputs in pairwise(cuts))
            for cuts, (k, s, p, n) in zip(target.cuts[2:], window, strict=True)
        )
        own = Needs.of_layout(target)
        plan = route(source, Needs(self._grid, (*own.intervals[:2], *space), own.wrap), transport.rank)
        self._fetch = Move(transport, team, self._says, plan, torch.clone)
        self._source, self._outputs, self._extents = source, target.block(transport.rank), shape
        self._records = agreed.requires_grad
        problem = self._misplaced(indices)
        ballot = Ballot()
        found = ballot.any(problem is not None)
        ballot.count(transport, team, self._says)
        if ballot.read(found):
            raise PartitionError(
                describe(f"{self._says} got indices that it cannot take.", tell(transport, team, problem))
            )

    def _each(self, size: object) -> tuple[int, ...]:
        """A size for each dim of space, where torch takes one for all too."""
        sizes = tuple(size) if isinstance(size, tuple | list) else (size,)
        if len(sizes) not in (1, self.dims) or not all(isinstance(n, int) for n in sizes):
            raise PartitionError(f"{self._says} needs one size, or one for each of {self.dims} dims, got {size!r}.")
        return sizes * self.dims if len(sizes) == 1 else sizes

    def _output_shape(self, shape: Shape, size: Sequence[int] | None) -> Shape:
        """The extents of the global output: those asked for, less than a stride from what the windows reach."""
        window = zip(shape[2:], self._kernel, self._stride, self._padding, strict=True)
        found = tuple((n - 1) * s + k - 2 * p for n, k, s, p in window)
        if size is not None:
            asked = size[2:] if len(size) == self.dims + 2 else size
            if len(asked) != self.dims or any(
                not -s < n - reached < s for n, reached, s in zip(asked, found, self._stride, strict=True)
            ):
                raise PartitionError(
                    f"{self._says}: invalid output_size {size} for a global input of shape {shape}.\n"
                    f"  fix: {self.dims} numbers less than the stride {self._stride} away from {found}."
                )
            found = tuple(asked)
        if min(found) < 1 or 0 in shape[1:]:
            raise PartitionError(f"{self._says} makes nothing of a global input of shape {shape}.")
        return found

    def _misplaced(self, indices: Tensor) -> str | None:
        """What is wrong with indices of this worker: one outside of the window of its place."""
        if not indices.numel() or indices.is_meta:  # without numbers, in a plan, there is nothing to look at
            return None
        assert self._source is not None
        starts = self._source.block(self.P_x.transport.rank).start[2:]
        wrong = (indices < 0) | (indices >= math.prod(self._extents))
        for d, rows in enumerate(self._places(indices)):
            own = torch.arange(starts[d], starts[d] + rows.shape[d - self.dims], device=rows.device)
            first = (own * self._stride[d] - self._padding[d]).view(-1, *(1,) * (self.dims - 1 - d))
            wrong |= (rows < first) | (rows >= first + self._kernel[d])
        return f"index {int(indices[wrong][0])} is outside of the window of its value" if bool(wrong.any()) else None

    def _places(self, indices: Tensor) -> list[Tensor]:
        """The row of each index along each dim of space."""
        places = []
        for extent in reversed(self._extents):
            places.append(indices % extent)
            indices = indices.div(extent, rounding_mode="floor")
        return places[::-1]

    # Calling

    def forward(self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        if self._is_outside:
            return as_batch(x.flatten()[:0], x)
        values = self._move(x.view(*self._lead, *x.shape), self._fetch, self._records)
        indices = self._move(indices.view(*self._lead, *indices.shape), self._fetch, False, step=1)
        lengths, at = self._outputs.shape[2:], torch.zeros_like(indices)
        mine = torch.ones_like(indices, dtype=torch.bool)
        for rows, start, length in zip(self._places(indices), self._outputs.start[2:], lengths, strict=True):
            mine &= (rows >= start) & (rows < start + length)
            at = at * length + rows - start
        volume = math.prod(lengths)
        lead = self._outputs.shape[:2]
        at = torch.where(mine, at, volume).flatten(2)  # values of other workers go to an extra place, which is dropped
        y = values.new_zeros(*lead, volume + 1).scatter(2, at, values.reshape(at.shape))
        y = y[..., :volume].reshape(self._outputs.shape)
        return y.squeeze(0) if self._lead else y

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class DistributedMaxUnpool2d(MaxUnpool):
    dims = 2


class DistributedMaxUnpool1d(MaxUnpool):
    dims = 1


class DistributedMaxUnpool3d(MaxUnpool):
    dims = 3
