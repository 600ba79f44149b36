"""Memory that kernels of torch take from its allocator for themselves, on the CPU: convolutions, in the main.

oneDNN computes float32 convolutions on copies in which 16 channels lie side by side (`n` channels take the room of the next
multiple of 16), and makes the results dense again. Of other dtypes, and of small inputs of one sample, torch unrolls the
windows of the input into the rows of a matrix. Which of these copies are there at the same time was read off torch's profiler
(torch 2.13, x86 with AVX); a product of 1 x 1 windows needs none. The matrix of a small input is small, and left out.

    forward     weight and input and output blocked,  then  output blocked + output
    backward    gradient of output blocked + that of input blocked,  then  of input blocked + of input,
                then  of input + gradient of output and input and gradient of weight blocked

On a GPU, cuDNN chooses among workspaces at run time. Of 76 convolutions on an H200 (float32, cuDNN 9.19) most take copies of
input, weight and output with channels last; the products of 1 x 1 windows take none in forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

aten: Any = torch.ops.aten
SIDE_BY_SIDE = 16
SMALL = 20480
"""Elements up to which torch convolves a single sample by itself."""
PLAIN = 4
"""Up to so many channels the input of a convolution is read as it lies."""


def workspace_of(operator: Any, args: Sequence[Any], outputs: Sequence[Tensor | None], device: str = "cpu") -> int:
    """Bytes that are held at the most while the operator runs, beyond what it returns."""
    packet = operator.overloadpacket
    if device == "cuda":
        return _by_cudnn(packet, args, outputs)
    if packet is aten.convolution:
        x, weight, _, _, _, _, transposed, _, groups = args
        return _forward(x, weight, outputs[0], bool(transposed), groups)
    if packet is aten.convolution_backward:
        gradient, x, weight, _, _, _, _, transposed, _, groups, wanted = args
        return _backward(gradient, x, weight, bool(transposed), groups, bool(wanted[0]))
    return 0


def _by_cudnn(packet: Any, args: Sequence[Any], outputs: Sequence[Tensor | None]) -> int:
    if packet is aten.convolution and outputs[0] is not None:
        if _is_product(args[1]) and max(args[3]) == 1:
            return 0
        return args[0].nbytes + args[1].nbytes + outputs[0].nbytes
    if packet is aten.convolution_backward:
        return sum(x.nbytes for x in args[:3])
    return 0


def unrolled_elements(operator: Any, args: Sequence[Any], outputs: Sequence[Tensor | None]) -> int:
    """Elements of the windows that torch unrolls for a convolution on the CPU; none where oneDNN computes it.

    Torch's own rule: it leaves float32 to oneDNN unless a single sample is small. Backward unrolls once for each gradient.
    """
    if operator.overloadpacket is aten.convolution_backward:
        y, x, weight, _, stride, _, dilation, transposed, _, groups, wanted = args
        times = bool(wanted[0]) + bool(wanted[1])
    else:
        x, weight, _, stride, _, dilation, transposed, _, groups = args
        y, times = outputs[0], 1
    if y is None or not y.numel() or _by_onednn(x, weight, stride, dilation, groups):
        return 0
    return times * _unrolled(x, weight, y, bool(transposed), groups) // x.element_size()


def _by_onednn(x: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int) -> bool:
    if x.dtype != torch.float32:
        return False
    steps = max(*stride, *dilation) > 1
    worth = steps or len(x) >= 16 or weight.shape[-1] != 1 or weight.shape[-2] != 1
    large = groups > 1 or (weight.shape[-1] > 3 and weight.shape[-2] > 3) or len(x) > 1
    return worth and (large or prod(x.shape[:4]) > SMALL)


def wasted(operator: Any, args: Sequence[Any]) -> float:
    """How many times as much a convolution on the CPU computes as it has to: channels fill up vectors."""
    x, weight = args[1:3] if operator.overloadpacket is aten.convolution_backward else args[:2]
    if x.dtype != torch.float32 or not weight.numel():
        return 1.0
    outer, inner = weight.shape[:2]
    return _filled(outer) / outer * _filled(inner) / inner


def columns(operator: Any, args: Sequence[Any], outputs: Sequence[Tensor | None]) -> int:
    """How long the rows of a convolution are: of its outputs, of a transposed one of its inputs."""
    if operator.overloadpacket is aten.convolution_backward:
        return int(args[1 if args[7] else 0].shape[-1])
    transposed = args[6]
    return int(args[0].shape[-1]) if transposed or outputs[0] is None else int(outputs[0].shape[-1])


def _filled(channels: int) -> int:
    return channels if channels <= PLAIN else -(-channels // SIDE_BY_SIDE) * SIDE_BY_SIDE


def _forward(x: Tensor, weight: Tensor, y: Tensor | None, transposed: bool, groups: int) -> int:
    if y is None or not y.numel() or _is_product(weight):
        return _dense(x)
    if x.dtype != torch.float32:
        return _dense(x) + _unrolled(x, weight, y, transposed, groups)
    if transposed:
        return _dense(x) + weight.nbytes + 2 * y.nbytes
    source, target = _source(x), _blocked(y)
    return _dense(x) + max(weight.nbytes + source + target, target + y.nbytes) - y.nbytes


def _backward(gradient: Tensor, x: Tensor, weight: Tensor, transposed: bool, groups: int, wants_x: bool) -> int:
    dense = _dense(x) + _dense(gradient)
    if not gradient.numel() or _is_product(weight):
        return dense
    of_x = x.nbytes if wants_x else 0
    if x.dtype != torch.float32:
        return dense + _unrolled(x, weight, gradient, transposed, groups)
    if transposed:
        return dense + weight.nbytes + gradient.nbytes + x.nbytes
    source, target = _source(x), _blocked(gradient)
    first = max(target + _blocked(x), _blocked(x) + of_x) if wants_x else 0
    second = of_x + target + source + weight.nbytes
    return dense + max(first, second) - of_x


def _is_product(weight: Tensor) -> bool:
    return prod(weight.shape[2:]) == 1


def _source(x: Tensor) -> int:
    return 0 if x.shape[1] <= PLAIN else _blocked(x)


def _blocked(x: Tensor) -> int:
    """Bytes of a copy with channels side by side."""
    return x.nbytes // max(1, x.shape[1]) * -(-x.shape[1] // SIDE_BY_SIDE) * SIDE_BY_SIDE


def _unrolled(x: Tensor, weight: Tensor, y: Tensor, transposed: bool, groups: int) -> int:
    """Bytes of the windows of the input as rows; of a transposed convolution, of those of its output."""
    places, channels = (x, y.shape[1]) if transposed else (y, x.shape[1])
    windows = prod(places.shape[2:]) * places.shape[0]
    return windows * channels // groups * prod(weight.shape[2:]) * x.element_size()


def _dense(x: Tensor) -> int:
    """Bytes of a copy, where the tensor does not lie densely."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if x.is_contiguous() or (x.dim() in formats and x.is_contiguous(memory_format=formats[x.dim()])):
        return 0
    return x.nbytes
