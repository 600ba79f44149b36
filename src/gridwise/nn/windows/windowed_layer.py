"""What convolutions, pooling and padding share: for my block of the output, which box of the input do I need?

    plan      output shape: from torch's layer itself, on the meta device; the output's blocks are balanced
              needs: per dim and place on the grid, the rows that the outputs there see (`grid.window`)
    call      fetch the needed box, with margins        one movement: halos, channels and padding at once (`fetch`)
              pad and crop, for reflect and replicate   local
              call torch                                local
    backward  no code: each step has an exact adjoint

Torch also decides what is refused: its error for the global shape is raised on all workers before anything is sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...errors import PartitionError
from ...grid import Grid, Layout, Shape
from ...operators.call import OperatorCall, TensorSpec
from ...operators.on_boxes import Local
from ...operators.table import NotOnBoxes
from ...partition import Partition
from ..engine.agreement import Structure, agree_layout, agree_unbatched
from ..engine.arguments import problem_with_tensor
from ..engine.autocast import autocasts
from ..engine.layer import Layer
from .local_part import LocalPart

Size = int | tuple[int, ...]
"""One number for all dims of space, or one for each."""
LayersByDims = dict[int, type[torch.nn.Module]]
FunctionsByDims = dict[int, Callable[..., Tensor]]


class WindowedLayer(Layer):
    """A layer whose outputs see windows of the input. A subclass plans in `_plan` and computes in `_local`."""

    dims: ClassVar[int]
    """How many dims of space, after batch and channels."""
    _template: torch.nn.Module
    _part: Any
    """This worker's part in a call (`LocalPart`, `ConvPart`); like `_agreed`, assigned by set-up."""
    _agreed: Structure
    return_indices: bool = False
    """Whether maximum pooling returns indices too."""

    def __init__(self, P_x: Partition) -> None:
        super().__init__()
        self.P_x = P_x
        self._grid_x = self._grid_of(P_x, "P_x")
        self._unbatched = False
        self._batch = 0

    def _grid_of(self, partition: Partition, name: str) -> Grid:
        """The grid with an axis for each of (batch, channel, *space); one without a batch axis gets one of length 1."""
        if not isinstance(partition, Partition) or partition.dim not in (self.dims + 1, self.dims + 2):
            has = f"{partition.shape}" if isinstance(partition, Partition) else repr(partition)
            raise PartitionError(
                f"{type(self).__name__}: `{name}` (={has}) must be a partition with {self.dims + 2} axes (batch, channel "
                f"and {self.dims} of space), or {self.dims + 1} without the batch.\n  fix: use 1 for dims that are not cut."
            )
        return Grid(partition.ranks, (1,) * (self.dims + 2 - partition.dim) + partition.shape)

    def _set_template(self, template: torch.nn.Module) -> None:
        """Keep torch's layer, on the meta device: it knows the output's shape and what to refuse."""
        self.__dict__["_template"] = template  # not a submodule: it is no part of this layer's state
        for name in (*self._fixed, *self._settings):
            if hasattr(template, name):
                setattr(self, name, getattr(template, name))

    @property
    def _sequential(self) -> Any:
        """Torch's layer, with the current settings of this one."""
        template: Any = self._template
        for name in self._settings:
            setattr(template, name, getattr(self, name))
        return template

    def extra_repr(self) -> str:
        words: str = self._sequential.extra_repr()
        return words

    def _each(self, size: int | Sequence[int]) -> tuple[int, ...]:
        """A size for each dim of space, from one for each or one for all."""
        sizes = tuple(size) if isinstance(size, tuple | list) else (size,)
        return sizes * self.dims if len(sizes) == 1 else sizes

    # Planning

    def _problem_with(self, input: tuple) -> str | None:
        if problem := problem_with_tensor(input):
            return problem
        x, dims = input[0], self.dims
        if not self.P_x.active:
            return None
        if x.dim() not in (dims + 1, dims + 2):
            return f"needs a block of {dims + 2} dims, or {dims + 1} without the batch, got shape {tuple(x.shape)}"
        if x.dim() == dims + 1 and self._grid_x.shape[0] > 1:
            return (
                f"got a block of shape {tuple(x.shape)} without a batch, but the grid cuts the batch: {self.P_x.shape}"
            )
        return None

    def _distdl_module_setup(self, input: tuple) -> None:
        x = input[0]
        mine = x.dim() == self.dims + 1 if self.P_x.active else None
        self._unbatched = agree_unbatched(self.P_x.transport, self._team, self._title, mine)
        x = self._batched(x)
        source, self._agreed = agree_layout(self.P_x.transport, self._team, self._title, self._grid_x, x)
        self._batch = x.shape[0] if self.P_x.active else source.global_shape[0]
        self._plan(source, self._shape_by_torch(source.global_shape, self._agreed.dtype))

    def _distdl_module_teardown(self, input: tuple) -> None:
        for name in ("_part", "_agreed"):
            self.__dict__.pop(name, None)

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        """The global output's shape; raises what torch would raise for the global input."""
        template = self._sequential
        for name in template._parameters:
            value = self._parameters.get(name, next(self.parameters(), None))  # computed from others, of the same dtype
            if value is not None:
                blank = torch.empty(self._shardings[name].shape, dtype=value.dtype, device="meta")
                dtype = value.dtype if autocasts() else dtype
            template._parameters[name] = None if value is None else torch.nn.Parameter(blank, requires_grad=False)
        x = torch.empty(shape[1:] if self._unbatched else shape, dtype=dtype, device="meta")
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about a computation that is not carried out
                y = template(x)
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
            asked = f"{self._title} cannot take a global input of shape {tuple(x.shape)}, {dtype}"
            raise PartitionError(f"{asked}: {error}") from None
        y = y[0] if isinstance(y, tuple) else y
        return (1, *y.shape) if self._unbatched else tuple(y.shape)

    def _try_layer(self, layer: Any, dtype: torch.dtype) -> None:
        """Raise torch's error, if any, for an input of this dtype, also on workers where torch's kernel will not run."""
        layer.return_indices, x = self.return_indices, torch.empty(0, dtype=dtype, device=self._agreed.device)
        self._try_dtypes(lambda one: layer(one(x, 1, 1, *(3,) * self.dims)))

    def _plan(self, source: Layout, shape: Shape) -> None:
        """Plan for an input in blocks `source` and an output of global `shape`. Nothing is sent."""
        target = Layout.balanced(source.grid, shape)
        try:
            operator = self._operator(TensorSpec(source.global_shape, self._agreed.dtype, self._agreed.device), shape)
        except NotOnBoxes as error:
            raise PartitionError(f"{self._title}: {error}.") from None
        self._part = LocalPart.of(self.P_x.transport, self._team, self._title, operator, source, target)

    def _operator(self, x: TensorSpec, shape: Shape) -> Local:
        """The layer's operator on boxes, for a global input and the global shape of the output."""
        raise NotImplementedError

    def _call(self, x: TensorSpec, shape: Shape, name: str, *given: Any) -> OperatorCall:
        """A call of the ATen operator `name` with these arguments after the input."""
        return OperatorCall(getattr(torch.ops.aten, name).default, (x, *given), {}, (replace(x, shape=shape),))

    @property
    def _nothing(self) -> Callable[[Tensor], Tensor]:
        """Makes the result of a worker without outputs: ``(batch, 0)``, with its own batch if it has one."""
        batch = self._batch
        return lambda x: x.new_empty(batch, 0)

    # Calling

    def _batched(self, x: Tensor) -> Tensor:
        return x.unsqueeze(0) if self._unbatched and x.dim() == self.dims + 1 else x

    def forward(self, input: Tensor) -> Any:
        if self._is_outside:
            return self._outside(input)
        y = self._local(self._batched(input))
        if not self._unbatched:
            return y
        return tuple(part.squeeze(0) for part in y) if isinstance(y, tuple) else y.squeeze(0)

    def _local(self, x: Tensor) -> Any:
        """The outputs of this worker for its block; zero-volume and connected to it where it has none."""
        y = self._part(self._agreed.convert(x), self._call_id, self._agreed.requires_grad)
        return y if isinstance(y, tuple) or self._part.block.volume else self._with_indices(y)

    def _outside(self, x: Tensor) -> Any:
        """The result of a worker outside the grid: a zero-volume tensor that can be differentiated like all others."""
        y = x.flatten()[:0]
        for parameter in self.parameters(recurse=False):
            y = y + parameter.flatten()[:0]
        return self._with_indices(as_batch(y, x))

    def _with_indices(self, y: Tensor) -> Any:
        """`y`, which has no elements, and its indices if the layer returns them."""
        return (y, y.new_empty(y.shape, dtype=torch.int64)) if self.return_indices else y


def as_batch(nothing: Tensor, x: Tensor) -> Tensor:
    """`nothing`, which has no elements, in the shape for the input `x`: ``(batch, 0)``, or ``(0,)`` without a batch."""
    return nothing.reshape(x.shape[0], 0) if x.dim() > 1 else nothing
