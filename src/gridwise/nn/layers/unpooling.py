"""Max unpooling, the partial inverse of max pooling: each value returns to its place by its global index.

    y[indices[i]] = x[i],  0 elsewhere          indices as the pooling layers return them: global and flat

A value's place lies in its window, so a worker's outputs come from the inputs whose windows overlap them. It fetches
these, values and indices, and writes those that fall into its block. An index outside its window, which torch accepts
but no pooling with these arguments can produce, is refused by all workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ...comm.agreement import gather_lines, largest
from ...errors import PartitionError
from ...grid import Layout, Needs, Shape, route, transposed_need
from ...partition import Partition
from ..docstrings import documented_like
from ..engine.arguments import problem_with_sizes
from ..engine.carrier import Move
from ..windows.output_size import agree_output_size, as_size, problem_with_output_size
from ..windows.windowed_layer import LayersByDims, Size, WindowedLayer

SEQUENTIAL: LayersByDims = {1: torch.nn.MaxUnpool1d, 2: torch.nn.MaxUnpool2d, 3: torch.nn.MaxUnpool3d}


class MaxUnpool(WindowedLayer):
    """The common base of unpooling layers; see `DistributedMaxUnpool2d`."""

    kernel_size: Size
    stride: Size | None
    padding: Size
    _keeps_plans = False
    _settings = ("kernel_size", "stride", "padding")
    _source: Layout

    def __init__(self, P_x: Partition, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__(P_x)
        template = SEQUENTIAL[self.dims](kernel_size, stride, padding)
        self._takes_part(P_x, signature=template.extra_repr())
        self._set_template(template)

    # Planning

    def _problem_with(self, input: tuple) -> str | None:
        if len(input) not in (2, 3):
            return f"needs values and their indices, got {len(input)} argument(s)"
        x, indices, *size = input
        if not isinstance(indices, Tensor) or indices.dtype != torch.int64:
            return "needs indices of dtype int64, as pooling returns them"
        if problem := super()._problem_with((x,)):
            return problem
        if x.shape != indices.shape:
            return f"needs values and indices of one shape, got {tuple(x.shape)} and {tuple(indices.shape)}"
        if problem := problem_with_output_size(*size):
            return problem
        known = self._distdl_is_setup and not self._distdl_input_changed(input)
        return self._misplaced(indices) if known else None

    def _distdl_input_changed(self, input: tuple) -> bool:
        return super()._distdl_input_changed(input) or self._asked != as_size(*input[2:])

    def _distdl_module_setup(self, input: tuple) -> None:
        transport, team, (x, indices, *size) = self.P_x.transport, self._team, input
        stride = self.kernel_size if self.stride is None else self.stride
        sizes = {"kernel_size": self.kernel_size, "stride": stride, "padding": self.padding}
        if problem := problem_with_sizes(self.dims, **sizes):
            raise PartitionError(f"{self._title}: {problem}.")
        self._kernel, self._stride, self._padding = map(self._each, sizes.values())
        self._asked = as_size(*size)
        agree_output_size(transport, team, self._title, self._asked)
        super()._distdl_module_setup((x,))
        problem = self._misplaced(indices)
        if any(largest(transport, team, self._title, problem is not None)):
            raise PartitionError(
                f"{self._title} got indices that it cannot take.", gather_lines(transport, team, problem)
            )

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        """The output's shape, with `output_size` if given: less than a stride from what the windows reach."""
        window, size = zip(shape[2:], self._kernel, self._stride, self._padding, strict=True), self._asked
        found = tuple((n - 1) * s + k - 2 * p for n, k, s, p in window)
        if size is not None:
            asked = size[2:] if len(size) == self.dims + 2 else size
            if len(asked) != self.dims or any(
                not -s < n - reached < s for n, reached, s in zip(asked, found, self._stride, strict=True)
            ):
                raise PartitionError(
                    f"{self._title}: invalid output_size {size} for a global input of shape {shape}.\n"
                    f"  fix: {self.dims} numbers less than the stride {self._stride} away from {found}."
                )
            found = tuple(asked)
        if min(found) < 1 or 0 in shape[1:]:
            raise PartitionError(f"{self._title} has an empty output for a global input of shape {shape}.")
        return *shape[:2], *found

    def _plan(self, source: Layout, shape: Shape) -> None:
        rank, target = self.P_x.transport.rank, Layout.balanced(source.grid, shape)
        window = zip(self._kernel, self._stride, self._padding, source.global_shape[2:], strict=True)
        needs = Needs.of_layout(target)
        for d, (k, s, p, n) in enumerate(window, 2):
            needs = needs.along(d, [transposed_need(outputs, k, s, p, 1, n) for outputs in pairwise(target.cuts[d])])
        self._fetch = Move(self.P_x.transport, self._team, self._title, route(source, needs, rank), torch.clone)
        self._source, self._outputs, self._extents = source, target.block(rank), shape[2:]

    def _misplaced(self, indices: Tensor) -> str | None:
        """The problem with this worker's indices if one lies outside the window of its value, or None."""
        if not indices.numel() or indices.is_meta:  # meta tensors, in planning, have no values to check
            return None
        starts = self._source.block(self.P_x.transport.rank).start[2:]
        wrong = (indices < 0) | (indices >= math.prod(self._extents))
        for d, rows in enumerate(self._places(indices)):
            own = torch.arange(starts[d], starts[d] + rows.shape[d - self.dims], device=rows.device)
            first = (own * self._stride[d] - self._padding[d]).view(-1, *(1,) * (self.dims - 1 - d))
            wrong |= (rows < first) | (rows >= first + self._kernel[d])
        return f"index {int(indices[wrong][0])} is outside of the window of its value" if bool(wrong.any()) else None

    def _places(self, indices: Tensor) -> list[Tensor]:
        """For each dim of space, the row that each index refers to."""
        places = []
        for extent in reversed(self._extents):
            places.append(indices % extent)
            indices = indices.div(extent, rounding_mode="floor")
        return places[::-1]

    # Calling

    def forward(  # type: ignore[override]
        self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None
    ) -> Tensor:
        if self._is_outside:
            return self._outside(input)
        values = self._move(self._batched(input), self._fetch, self._agreed.requires_grad)
        indices = self._move(self._batched(indices), self._fetch, False, step=1)
        lengths, at = self._outputs.shape[2:], torch.zeros_like(indices)
        mine = torch.ones_like(indices, dtype=torch.bool)
        for rows, start, length in zip(self._places(indices), self._outputs.start[2:], lengths, strict=True):
            mine &= (rows >= start) & (rows < start + length)
            at = at * length + rows - start
        volume = math.prod(lengths)
        lead = self._outputs.shape[:2]
        at = torch.where(mine, at, volume).flatten(2)  # values of other blocks go to an extra element, which is dropped
        y = values.new_zeros(*lead, volume + 1).scatter(2, at, values.reshape(at.shape))
        y = y[..., :volume].reshape(self._outputs.shape)
        return y.squeeze(0) if self._unbatched else y


class DistributedMaxUnpool2d(MaxUnpool):
    """`torch.nn.MaxUnpool2d` on a grid, for results of a pooling layer with the same arguments and `return_indices`.

    Parameters
    ----------
    P_x : the partition of input and output, axes (batch, channel, height, width), or without the batch
    kernel_size, stride, padding : as in torch

    Shape
    -----
    - values, indices: ``(batch, channel, height, width)``, or without the batch; this worker's blocks of them
    - output: like the values, with the extents that the windows reach, or `output_size`

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

    dims = 2


@documented_like(DistributedMaxUnpool2d)
class DistributedMaxUnpool1d(MaxUnpool):
    dims = 1


@documented_like(DistributedMaxUnpool2d)
class DistributedMaxUnpool3d(MaxUnpool):
    dims = 3
