"""Padding layers on batch x channel x space grids: the *global* tensor is padded, and its blocks are balanced again.

    output o of a dim is the input o - before        outside [0, n): the constant, the mirrored, nearest or opposite row

A constant fills the margins of the fetched box, circular padding is done by a route that wraps, and reflection and
replication are done locally on the rows that they need. Negative padding crops, where torch allows it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import PartitionError, UnsupportedError
from ...grid import Cuts, Layout, Shape, hull_then_pad
from ...partition import Partition
from ..docstrings import LayerFamily
from ..windows.windowed_layer import Rows, Share, Size, WindowedLayer, empty_output


class Pad(WindowedLayer):
    """The common base of padding layers; see `DistributedZeroPad2d`."""

    mode: ClassVar[str]
    _fresh_gradients = False  # the fetched tensor may be the output itself
    sequential: ClassVar[type[torch.nn.Module]]
    padding: tuple[int, ...]
    value: float = 0.0
    _settings: ClassVar[tuple[str, ...]] = ("padding",)

    def __init__(self, P_x: Partition, padding: Size, *value: float) -> None:
        super().__init__(P_x)
        template = self.sequential(padding, *value)
        self._takes_part(P_x, signature=template.extra_repr())
        self._set_template(template)
        self._pad_mode = self.mode
        self._refuse_negative()

    def _refuse_negative(self) -> None:
        if self.mode == "circular" and min(self.padding) < 0:
            raise UnsupportedError(
                f"{self._title}: negative circular padding is not supported: torch crops first, then wraps the rest.\n"
                "  fix: crop the tensor first, then pad by the positive amounts only."
            )

    def _shape_by_torch(self, shape: Shape, dtype: torch.dtype) -> Shape:
        if self.mode in ("reflect", "replicate"):
            self._try_layer(self.sequential(1), dtype)
        return super()._shape_by_torch(shape, dtype)

    def _plan(self, source: Layout, shape: Shape) -> None:
        self._refuse_negative()
        if len(self.padding) > 2 * self.dims:
            raise PartitionError(
                f"{self._title}: `padding` (={self.padding}) reaches beyond the {self.dims} dims of space."
            )
        self._share = self._share_on_grid(source, shape, wrap=self.mode == "circular", fill=self.value)

    def _rows(self, d: int, cuts: Cuts, extent: int) -> list[Rows]:
        at = 2 * (self.dims - 1 - d)  # torch lists the last dim first; leading dims may be left out
        before = self.padding[at] if at < len(self.padding) else 0
        needs = [(first - before, last - before) for first, last in pairwise(cuts)]
        if self.mode == "circular":
            return [Rows(need) for need in needs]
        return [Rows.padded(hull_then_pad(need, extent, self.mode), self.mode == "constant") for need in needs]

    def _local(self, x: Tensor, share: Share) -> Tensor:
        window = self._window_input(x)
        if share.is_empty:
            return empty_output(share.shape, window.x)
        padded = any(any(line.pad) for line in share.rows)
        moved = share.fetch is not None and not share.fetch.is_identity
        return window.computed(lambda x: x.contiguous() if padded or moved else x.clone())


class ConstantPad(LayerFamily, Pad):
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

    mode = "constant"
    _settings = ("padding", "value")

    def __init__(self, P_x: Partition, padding: Size, value: float) -> None:
        super().__init__(P_x, padding, value)


class ImagePad(LayerFamily, Pad):
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

    def __init__(self, P_x: Partition, padding: Size) -> None:
        super().__init__(P_x, padding)


class DistributedConstantPad2d(ConstantPad):
    dims, sequential = 2, torch.nn.ConstantPad2d


class DistributedZeroPad2d(ImagePad):
    dims, sequential, mode = 2, torch.nn.ZeroPad2d, "constant"
    _settings = ("padding", "value")


class DistributedConstantPad1d(ConstantPad):
    dims, sequential = 1, torch.nn.ConstantPad1d


class DistributedConstantPad3d(ConstantPad):
    dims, sequential = 3, torch.nn.ConstantPad3d


class DistributedZeroPad1d(ImagePad):
    dims, sequential, mode = 1, torch.nn.ZeroPad1d, "constant"
    _settings = ("padding", "value")


class DistributedZeroPad3d(ImagePad):
    dims, sequential, mode = 3, torch.nn.ZeroPad3d, "constant"
    _settings = ("padding", "value")


class DistributedReflectionPad1d(ImagePad):
    dims, sequential, mode = 1, torch.nn.ReflectionPad1d, "reflect"


class DistributedReflectionPad2d(ImagePad):
    dims, sequential, mode = 2, torch.nn.ReflectionPad2d, "reflect"


class DistributedReflectionPad3d(ImagePad):
    dims, sequential, mode = 3, torch.nn.ReflectionPad3d, "reflect"


class DistributedReplicationPad1d(ImagePad):
    dims, sequential, mode = 1, torch.nn.ReplicationPad1d, "replicate"


class DistributedReplicationPad2d(ImagePad):
    dims, sequential, mode = 2, torch.nn.ReplicationPad2d, "replicate"


class DistributedReplicationPad3d(ImagePad):
    dims, sequential, mode = 3, torch.nn.ReplicationPad3d, "replicate"


class DistributedCircularPad1d(ImagePad):
    dims, sequential, mode = 1, torch.nn.CircularPad1d, "circular"


class DistributedCircularPad2d(ImagePad):
    dims, sequential, mode = 2, torch.nn.CircularPad2d, "circular"


class DistributedCircularPad3d(ImagePad):
    dims, sequential, mode = 3, torch.nn.CircularPad3d, "circular"
