"""Padding layers on batch x channel x space grids: the *global* tensor is padded, and its blocks are balanced again.

A constant fills the margins of the fetched box, circular padding is done by a route that wraps, and reflection and
replication are done locally on the rows that they need (`operators.windows.padding`). Negative padding crops, where torch
allows it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ...errors import PartitionError, UnsupportedError
from ...grid import Layout, Shape
from ...operators.call import TensorSpec
from ...partition import Partition
from ..docstrings import arguments_of, documented_like
from ..windows.padded_part import padded_part
from ..windows.windowed_layer import WindowedLayer


class Pad(WindowedLayer):
    """The common base of padding layers; see `DistributedZeroPad2d`."""

    mode: ClassVar[str] = "constant"
    padding: tuple[int, ...]
    value: float = 0.0
    _settings: ClassVar[tuple[str, ...]] = ("padding",)

    def __init__(self, P_x: Partition, template: torch.nn.Module) -> None:
        super().__init__(P_x)
        self._takes_part(P_x, signature=template.extra_repr())
        self._set_template(template)
        self._refuse_negative()

    def _refuse_negative(self) -> None:
        if self.mode == "circular" and min(self.padding) < 0:
            raise UnsupportedError(
                f"{self._title}: negative circular padding is not supported: torch crops first, then wraps the rest.\n"
                "  fix: crop the tensor first, then pad by the positive amounts only."
            )

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        if self.mode in ("reflect", "replicate"):
            self._try_layer(type(self._template)(1), dtype)
        return super()._shape_by_torch(shape, dtype)

    def _plan(self, source: Layout, shape: Shape) -> None:
        self._refuse_negative()
        if len(self.padding) > 2 * self.dims:
            raise PartitionError(
                f"{self._title}: `padding` (={self.padding}) reaches beyond the {self.dims} dims of space."
            )
        x = TensorSpec(source.global_shape, self._agreed.dtype, self._agreed.device)
        call = self._call(x, shape, "pad", list(self.padding), self.mode, self.value)
        target = Layout.balanced(source.grid, shape)
        self._part = padded_part(call, self.P_x.transport, self._team, self._title, source, target)

    def _local(self, x: Tensor) -> Tensor:
        y: Tensor = super()._local(x)
        return y.clone() if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() else y


class DistributedConstantPad2d(Pad):
    """`torch.nn.ConstantPad2d` on a grid: the same result for every padding, size and grid, or an error.

    Parameters
    ----------
    P_x : the partition of input and output, axes (batch, channel, height, width), or without the batch
    padding : of the *global* tensor, as in torch: one number, or one for each side, last dim first
    value : what to fill the padding with

    Shape
    -----
    - input: ``(batch, channel, height, width)``, or without the batch; this worker's block of it
    - output: like the input, each extent longer by its padding

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> gridwise.nn.DistributedConstantPad2d(P_x, 1, 1.5)(torch.ones(2, 3, 8, 8)).shape
    torch.Size([2, 3, 10, 10])
    """

    dims = 2
    _settings = ("padding", "value")
    __init__ = arguments_of(torch.nn.ConstantPad2d)(Pad.__init__)


@documented_like(DistributedConstantPad2d)
class DistributedConstantPad1d(Pad):
    dims = 1
    _settings = ("padding", "value")
    __init__ = arguments_of(torch.nn.ConstantPad1d)(Pad.__init__)


@documented_like(DistributedConstantPad2d)
class DistributedConstantPad3d(Pad):
    dims = 3
    _settings = ("padding", "value")
    __init__ = arguments_of(torch.nn.ConstantPad3d)(Pad.__init__)


class DistributedZeroPad2d(Pad):
    """`torch.nn.ZeroPad2d` on a grid: the same result for every padding, size and grid, or an error.

    Parameters
    ----------
    P_x : the partition of input and output, axes (batch, channel, height, width), or without the batch
    padding : of the *global* tensor, as in torch: one number, or one for each side, last dim first

    Shape
    -----
    - input: ``(batch, channel, height, width)``, or without the batch; this worker's block of it
    - output: like the input, each extent longer by its padding

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> gridwise.nn.DistributedZeroPad2d(P_x, 2)(torch.ones(1, 3, 8, 8)).shape
    torch.Size([1, 3, 12, 12])
    """

    dims = 2
    _settings = ("padding", "value")
    __init__ = arguments_of(torch.nn.ZeroPad2d)(Pad.__init__)


@documented_like(DistributedZeroPad2d)
class DistributedZeroPad1d(Pad):
    dims = 1
    _settings = ("padding", "value")
    __init__ = arguments_of(torch.nn.ZeroPad1d)(Pad.__init__)


@documented_like(DistributedZeroPad2d)
class DistributedZeroPad3d(Pad):
    dims = 3
    _settings = ("padding", "value")
    __init__ = arguments_of(torch.nn.ZeroPad3d)(Pad.__init__)


@documented_like(DistributedZeroPad2d)
class DistributedReflectionPad1d(Pad):
    dims, mode = 1, "reflect"
    __init__ = arguments_of(torch.nn.ReflectionPad1d)(Pad.__init__)


@documented_like(DistributedZeroPad2d)
class DistributedReflectionPad2d(Pad):
    dims, mode = 2, "reflect"
    __init__ = arguments_of(torch.nn.ReflectionPad2d)(Pad.__init__)


@documented_like(DistributedZeroPad2d)
class DistributedReflectionPad3d(Pad):
    dims, mode = 3, "reflect"
    __init__ = arguments_of(torch.nn.ReflectionPad3d)(Pad.__init__)


@documented_like(DistributedZeroPad2d)
class DistributedReplicationPad1d(Pad):
    dims, mode = 1, "replicate"
    __init__ = arguments_of(torch.nn.ReplicationPad1d)(Pad.__init__)


@documented_like(DistributedZeroPad2d)
class DistributedReplicationPad2d(Pad):
    dims, mode = 2, "replicate"
    __init__ = arguments_of(torch.nn.ReplicationPad2d)(Pad.__init__)


@documented_like(DistributedZeroPad2d)
class DistributedReplicationPad3d(Pad):
    dims, mode = 3, "replicate"
    __init__ = arguments_of(torch.nn.ReplicationPad3d)(Pad.__init__)


@documented_like(DistributedZeroPad2d)
class DistributedCircularPad1d(Pad):
    dims, mode = 1, "circular"
    __init__ = arguments_of(torch.nn.CircularPad1d)(Pad.__init__)


@documented_like(DistributedZeroPad2d)
class DistributedCircularPad2d(Pad):
    dims, mode = 2, "circular"
    __init__ = arguments_of(torch.nn.CircularPad2d)(Pad.__init__)


@documented_like(DistributedZeroPad2d)
class DistributedCircularPad3d(Pad):
    dims, mode = 3, "circular"
    __init__ = arguments_of(torch.nn.CircularPad3d)(Pad.__init__)
