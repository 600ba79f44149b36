"""Upsampling and downsampling on a grid: each worker interpolates its block of the global output.

How a box of the output is made from the rows that it needs: `operators.windows.interpolation`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import PartitionError, UnsupportedError
from ...grid import Layout, Shape, balanced_cuts
from ...operators.call import OperatorCall, TensorSpec
from ...operators.formats import memory_format_of
from ...operators.on_boxes import Local
from ...operators.windows.interpolation import CUBIC, KERNELS, Interpolation
from ...operators.windows.interpolation_weights import NEAREST
from ...partition import Partition
from ..engine.agreement import Vote, agree_layout
from ..engine.arguments import problem_with_tensor
from ..engine.autocast import dtype_after
from ..engine.module import Module
from ..windows.local_part import LocalPart


def _check_mode(mode: str) -> None:
    if mode not in KERNELS:
        raise UnsupportedError(f"`mode` (={mode!r}) is not offered.\n  fix: one of {', '.join(map(repr, KERNELS))}.")


class DistributedUpsample(Module):
    """`torch.nn.Upsample` of tensors ``(batch, channel, *space)`` on `P_x`, up or down.

    Parameters
    ----------
    P_x : the partition of input and output; every axis may be longer than 1
    size, scale_factor, mode, align_corners, recompute_scale_factor : as in `torch.nn.Upsample`; `size` is the size
        of the global output. Modes: nearest, nearest-exact, linear, bilinear, trilinear, bicubic.

    Shape
    -----
    - input: ``(batch, channel, *space)``; this worker's block of it
    - output: like the input, with the extents `size`, or `scale_factor` times those of the input

    Notes
    -----
    Forward: fetch the rows that this worker's outputs need, and interpolate. Adjoint: by autograd; the cotangents of
    fetched rows go back to their owners and are added. Bytes: the fetched rows. The output is balanced along space.

    Gradients are those of the output. Torch's own, on a CPU, are not where a `scale_factor` other than 1 keeps an extent,
    or in mode 'nearest' one other than 2 doubles it: 5 rows by 1.1 are [0, 0, 1, 2, 3] of a 1-d, a 3-d or a large 2-d
    tensor, but their gradient in torch is that of a copy (so it fails `torch.autograd.gradcheck`). In a 2-d output of at
    most 128 rows and columns together, and with 4 channels or more in `torch.channels_last`, torch copies such rows, and
    so does this layer.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1])
    >>> gridwise.nn.DistributedUpsample(P_x, scale_factor=2)(torch.tensor([[[1.0, 2.0]]]))
    tensor([[[1., 1., 2., 2.]]])
    """

    _keeps_plans = True
    _settings = ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")
    _fixed = ("P_x",)

    def __init__(
        self,
        P_x: Partition,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        _check_mode(mode)
        self.P_x, self.mode, self.align_corners = P_x, mode, align_corners
        self.size = tuple(size) if isinstance(size, Sequence) else size
        self.scale_factor = tuple(map(float, scale_factor)) if isinstance(scale_factor, Sequence) else scale_factor
        self.recompute_scale_factor = recompute_scale_factor
        self._takes_part(P_x, signature=self.extra_repr())

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        _check_mode(self.mode)
        x = input[0]
        layout, agreed = agree_layout(self.P_x.transport, self._team, self._title, self.P_x.geometry, x)
        self._plan(layout, self._output_shape(layout.global_shape), x, lambda: self._agree_channels_last(x))
        self._records = agreed.requires_grad

    def _plan(self, layout: Layout, shape: Shape, x: Tensor, is_channels_last: Callable[[], bool]) -> None:
        """Plan for an input with this `layout`, and the dtype and device of `x`; nothing is sent.

        `is_channels_last` says how the global input lies in memory; it is asked only where torch's output depends on that.
        """
        dims, corners = len(shape) - 2, () if self.mode in NEAREST else (bool(self.align_corners),)
        kernel = getattr(torch.ops.aten, KERNELS[self.mode][dims - 1]).default
        given = (
            TensorSpec(layout.global_shape, x.dtype, x.device),
            list(shape[2:]),
            *corners,
            *map(self._scale, range(dims)),
        )
        call = OperatorCall(kernel, given, {}, (TensorSpec(shape, x.dtype, x.device),))
        operator = Interpolation(call, is_channels_last)
        cuts = [balanced_cuts(n, p) for n, p in zip(shape[2:], layout.grid.shape[2:], strict=True)]
        self.layout = Layout(layout.grid, (*layout.cuts[:2], *cuts))
        local = Local.planning(operator.needs, operator.planned)
        self._part = LocalPart.of(self.P_x.transport, self._team, self._title, local, layout, self.layout)

    def forward(self, input: Tensor) -> Tensor:
        if self._is_outside:
            return input.clone()
        return self._interpolated(input)

    def _interpolated(self, x: Tensor) -> Tensor:
        """This worker's block of the output."""
        made = dtype_after(lambda one: F.interpolate(one, (1,) * (x.dim() - 2), mode=self.mode), x)
        y: Tensor = self._part(x, self._call_id, self._records)
        return y.to(made)

    def _output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The global output's shape; raises what torch raises for arguments that do not fit."""
        try:
            y = F.interpolate(
                torch.empty(
                    (max(1, shape[0]), *shape[1:]), device="meta"
                ),  # torch refuses an empty batch, but only here
                self.size,
                self.scale_factor,
                "bilinear" if self.mode in CUBIC else self.mode,  # the same shape, computed much faster
                self.align_corners,
                self.recompute_scale_factor,
            )
        except (ValueError, TypeError, NotImplementedError, RuntimeError, AssertionError, ZeroDivisionError) as error:
            raise PartitionError(f"{self._title} of a global input of shape {tuple(shape)}: {error}") from error
        if 0 in (*shape[1:], *y.shape[2:]):  # torch refuses this too, but not on the meta device
            raise PartitionError(f"{self._title} of a global input of shape {tuple(shape)} would be empty.")
        return (shape[0], *y.shape[1:])

    def _scale(self, d: int) -> float | None:
        """The scale factor that torch would pass to its kernel for a dim of space."""
        factor = None if self.recompute_scale_factor else self.scale_factor
        return float(factor[d]) if isinstance(factor, tuple) else factor

    def _structure_of(self, input: tuple) -> Hashable:
        found = super()._structure_of(input)
        return (found, memory_format_of(input[0])) if self.mode in NEAREST else found

    def _agree_channels_last(self, x: Tensor) -> bool:
        """Whether the global input lies in memory with its channels last, as far as its blocks tell."""
        vote = Vote()
        says_nothing = not x.numel() or (x.is_contiguous() and x.movedim(1, -1).is_contiguous())
        asked = vote.equal(None if says_nothing else memory_format_of(x) is not torch.contiguous_format)
        vote.count(self.P_x.transport, self._team, self._title)
        return bool(vote.read(asked))

    def _problem_with(self, input: tuple) -> str | None:
        if problem := problem_with_tensor(input):
            return problem
        x = input[0]
        if not x.is_floating_point() and (self.mode not in NEAREST or x.dtype != torch.uint8):
            return f"interpolates floating-point tensors only in mode {self.mode!r}, got {x.dtype}"
        return None

    def extra_repr(self) -> str:
        given = [f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"]
        given += [f"mode={self.mode!r}"]
        given += [] if self.align_corners is None else [f"align_corners={self.align_corners}"]
        return ", ".join(given + ([] if not self.recompute_scale_factor else ["recompute_scale_factor=True"]))
