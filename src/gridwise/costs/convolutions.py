"""Convolutions as torch's kernels compute them: the workspace that they allocate, and the work that they waste.

oneDNN computes float32 convolutions on copies in which 16 channels lie side by side (`n` channels take the space of the next
multiple of 16), and makes the results dense again. For other dtypes, and for small inputs of one sample, torch unrolls the
windows of the input into the rows of a matrix. Which of these copies exist at the same time was read off torch's profiler
(torch 2.13, x86 with AVX); a product of 1 x 1 windows needs none in one thread. The matrix of a small input is small, and
ignored.

    forward     weight, input and output blocked,  then  output blocked + output
    backward    gradient of output blocked + that of input blocked,  then  of input blocked + of input,
                then  of input + gradient of output and input and gradient of weight blocked

On a GPU, cuDNN chooses a workspace at run time. Of 76 convolutions on an H200 (float32, cuDNN 9.19) most make channels-last
copies of input, weight and output; products of 1 x 1 windows make none in forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..torch_internals.operators import OpOverload

aten = torch.ops.aten
CHANNEL_BLOCK = 16
"""How many channels lie side by side in oneDNN's copies."""
SMALL = 20480
"""Up to this many elements, torch convolves a single sample without oneDNN."""


def is_large(shape: Sequence[int]) -> bool:
    """Whether torch gives a float32 input of this shape to oneDNN, though its kernel is small and there are no groups."""
    return shape[0] > 1 or prod(shape[:4]) > SMALL


UNPADDED_CHANNELS = 4
"""Up to this many channels, the input of a convolution is read without a copy."""


@dataclass(frozen=True)
class Convolution:
    """A call of the convolution operator, or of its backward."""

    x: Tensor
    weight: Tensor
    y: Tensor
    """The output; in backward, its gradient."""
    stride: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    groups: int
    wanted: Sequence[bool] | None = None
    """In backward: whether it computes the gradients of `x` and of `weight`."""
    threads: int = 1
    is_part: bool = False
    """Whether `x` is part of an input that torch would give to oneDNN."""

    @classmethod
    def of(cls, operator: OpOverload, args: Sequence[Any], outputs: Sequence[Tensor]) -> Convolution | None:
        """The convolution that a call computes; None if it is another operator."""
        if operator is aten.convolution.default:
            x, weight, _, stride, _, dilation, transposed, _, groups = args
            return cls(x, weight, outputs[0], stride, dilation, transposed, groups)
        if operator is aten.convolution_backward.default:
            y, x, weight, _, stride, _, dilation, transposed, _, groups, wanted = args
            return cls(x, weight, y, stride, dilation, transposed, groups, wanted)
        return None

    def workspace(self, device: str = "cpu") -> int:
        """The most bytes held while it runs, besides what it returns."""
        if device == "cuda":
            return 0 if self.wanted is None and self._is_product else self.x.nbytes + self.weight.nbytes + self.y.nbytes
        dense = _dense(self.x) + (0 if self.wanted is None else _dense(self.y))
        if not self.y.numel() or (self._is_product and not (self.threads > 1 and self._is_by_onednn)):
            return dense
        if self.x.dtype != torch.float32:
            return dense + self._unrolled * self.x.element_size()
        return dense + (self._backward() if self.wanted is not None else self._forward())

    def _forward(self) -> int:
        if self.transposed:
            return self.weight.nbytes + 2 * self.y.nbytes
        target = _blocked(self.y)
        return max(self.weight.nbytes + self._source + target, target + self.y.nbytes) - self.y.nbytes

    def _backward(self) -> int:
        if self.transposed:
            return self.weight.nbytes + self.y.nbytes + self.x.nbytes
        target = _blocked(self.y)
        second = target + self._source + self.weight.nbytes
        if not (self.wanted and self.wanted[0]):
            return second
        first = _blocked(self.x) + max(target, self.x.nbytes)
        return max(first - self.x.nbytes, second)

    @property
    def unrolled_elements(self) -> int:
        """Elements of the windows that torch unrolls on the CPU; 0 where oneDNN convolves.

        Torch's own rule: float32 goes to oneDNN unless a single sample is small. Backward unrolls once for each gradient.
        """
        if not self.y.numel() or self._is_by_onednn:
            return 0
        return self._unrolled * (1 if self.wanted is None else sum(map(bool, self.wanted[:2])))

    @property
    def wasted(self) -> float:
        """The factor by which the CPU computes more than necessary, because channels are padded to fill vectors."""
        if self.x.dtype != torch.float32 or not self.weight.numel():
            return 1.0
        outer, inner = self.weight.shape[:2]
        return _filled(outer) / outer * _filled(inner) / inner

    @property
    def columns(self) -> int:
        """The length of the output's rows; of the input's if it is transposed."""
        return int((self.x if self.transposed else self.y).shape[-1])

    @property
    def _is_by_onednn(self) -> bool:
        if self.x.dtype != torch.float32:
            return False
        samples, kernel = len(self.x), self.weight.shape[-2:]
        worth = not self._is_product or samples >= 16 or tuple(kernel) != (1, 1) or self.threads > 1
        if worth and self.is_part and self.wanted is None and not self.transposed and not self._is_product:
            return True
        return worth and (self.groups > 1 or min(kernel) > 3 or is_large(self.x.shape))

    @property
    def _is_product(self) -> bool:
        """Whether it is one product of matrices: a stride is left to oneDNN, as is any product if there are several threads."""
        return prod(self.weight.shape[2:]) == 1 and max(*self.stride, *self.dilation) == 1

    @property
    def _source(self) -> int:
        return 0 if self.x.shape[1] <= UNPADDED_CHANNELS else _blocked(self.x)

    @property
    def _unrolled(self) -> int:
        """Elements of the input's windows as rows of a matrix; of the output's if it is transposed."""
        places, channels = (self.x, self.y.shape[1]) if self.transposed else (self.y, self.x.shape[1])
        windows = prod(places.shape[2:]) * places.shape[0]
        return windows * channels // self.groups * prod(self.weight.shape[2:])


def _filled(channels: int) -> int:
    return channels if channels <= UNPADDED_CHANNELS else -(-channels // CHANNEL_BLOCK) * CHANNEL_BLOCK


def _blocked(x: Tensor) -> int:
    """Bytes of a copy with channels side by side."""
    return x.nbytes // max(1, x.shape[1]) * -(-x.shape[1] // CHANNEL_BLOCK) * CHANNEL_BLOCK


def _dense(x: Tensor) -> int:
    """Bytes of a dense copy; 0 if the tensor is dense already."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if x.is_contiguous() or (x.dim() in formats and x.is_contiguous(memory_format=formats[x.dim()])):
        return 0
    return x.nbytes
