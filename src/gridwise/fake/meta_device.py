"""Tells torch's meta kernels on which device a fake pretends to be: of a plain meta tensor they assume CUDA.

Strides of decompositions, Fourier transforms and unpooling, and the sizes of saved statistics, differ between devices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gridwise.fake.nested import Args
from gridwise.torch_internals.meta_kernels import device_hint_by_torch, replace_device_hint
from gridwise.torch_internals.operators import OpOverload

aten = torch.ops.aten


class _DeviceOfThread(threading.local):
    kind: str | None = None


_pretended = _DeviceOfThread()


def _device_hint(tensor: Tensor) -> str:
    return device_hint_by_torch(tensor) if _pretended.kind is None else _pretended.kind


replace_device_hint(_device_hint)


@contextmanager
def pretended_device(device: torch.device) -> Iterator[None]:
    """In the body, meta kernels give the geometry of this device."""
    before, _pretended.kind = _pretended.kind, device.type
    try:
        yield
    finally:
        _pretended.kind = before


def corrected(func: OpOverload, args: Args, result: Any, device: torch.device) -> Any:
    """The result of a meta kernel that asks for no device, as the CPU's kernel gives it."""
    correct = _ON_THE_CPU.get(func)
    return correct(args, result) if correct is not None and device.type == "cpu" else result


def _statistics(parameters: slice, training_at: int | None = None) -> Callable[[Args, Any], Any]:
    """Mean and deviation that a norm saves: in its own precision, and none in evaluation."""

    def correct(args: Args, result: Any) -> Any:
        (
            output,
            *saved,
        ) = result[:3]
        if training_at is not None and not args[training_at]:
            saved = [x.new_empty(0) for x in saved]
        single = any(x is not None and x.dtype == torch.float32 for x in args[parameters])
        kept = (x.to(torch.float32 if single else args[0].dtype) for x in saved)
        return (output, *kept, *result[3:])

    return correct


def _of_its_memory_format(args: Args, result: Any) -> Any:
    """The CPU keeps the memory format of the input."""
    last = args[0].dim() == 4 and args[0].is_contiguous(memory_format=torch.channels_last)
    return result.to(memory_format=torch.channels_last) if last and not args[0].is_contiguous() else result


_ON_THE_CPU: dict[OpOverload, Callable[[Args, Any], Any]] = {
    aten.native_batch_norm.default: _statistics(slice(1, 5), 5),
    aten._native_batch_norm_legit.default: _statistics(slice(1, 5), 5),
    aten._native_batch_norm_legit.no_stats: _statistics(slice(1, 3)),
    aten._batch_norm_with_update.default: _statistics(slice(1, 5)),
    aten.native_layer_norm.default: _statistics(slice(2, 4)),
    aten.max_unpool2d.default: _of_its_memory_format,
}
