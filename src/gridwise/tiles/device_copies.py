"""Boxes between the memory of the host and a CUDA device, on streams of their own, so that copies hide behind kernels.

    into    host ──► device    starts when what used that memory of the device before is done; kernels wait for it
    out     device ──► host    starts when the kernels before it are done; the next read of the array waits for it

A box of pinned memory is a strided copy by the device's copy engine. Torch would gather its rows on the host first: ten times
slower, and without waiting for what is still being written there. Memory that is not pinned goes through a pinned box.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..grid import Box
from .arrays import InMemory

try:
    from cuda.bindings import runtime  # comes with torch's builds for CUDA
except ImportError:
    runtime = None
LONGEST_PITCH = (1 << 31) - 1
"""Bytes from one row to the next that a strided copy can have."""


class Leaving(NamedTuple):
    """A copy to the host that may still be under way: what is copied, when it is done, and what the host has to do then."""

    x: Tensor
    done: torch.cuda.Event
    array: OnHost
    scatter: partial[Tensor] | None


class Lanes:
    """The streams of a device that copy, and what must live until their copies are done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.into, self.back, self.out = (torch.cuda.Stream(device) for _ in range(3))
        self._leaving: Leaving | None = None
        self._given_up: list[tuple[Tensor, torch.cuda.Event]] = []

    def leave(self, leaving: Leaving) -> None:
        """Keep what is being copied to the host until the next such copy."""
        self.settle()
        self._leaving = leaving

    def settle(self, array: OnHost | None = None) -> None:
        """Let the last copy to the host, if it is one of `array`, be done before what the device computes next."""
        last = self._leaving
        if last is None or (array is not None and (last.array is not array or last.scatter is None)):
            return
        if last.scatter is None:
            torch.cuda.current_stream(self.device).wait_event(last.done)
        else:
            last.done.synchronize()
            last.scatter()
        self._leaving = None

    def give_up(self, host: Tensor) -> None:
        """Keep memory of the host until the copies of now are done: torch's allocator does not know of them."""
        self._given_up = [(kept, done) for kept, done in self._given_up if not done.query()]
        self.out.wait_stream(self.into)
        self.out.wait_stream(self.back)
        self._given_up.append((host, self.out.record_event()))

    def finish(self) -> None:
        """Wait until all is where it belongs."""
        self.settle()
        self.into.synchronize()
        self.back.synchronize()
        self.out.synchronize()
        self._given_up.clear()


@cache
def lanes_of(device: torch.device) -> Lanes:
    return Lanes(device)


class OnHost(InMemory):
    """A tensor in the memory of the host, for tiles that are computed on a CUDA device."""

    def __init__(self, tensor: Tensor, device: torch.device) -> None:
        super().__init__(tensor)
        self._lanes, self._is_pinned = lanes_of(device), tensor.is_pinned()
        self._written: torch.cuda.Event | None = None

    def fetch(self, box: Box, device: torch.device) -> Tensor:
        return self._fetch(box, device, self._lanes.into)

    def _fetch(self, box: Box, device: torch.device, lane: torch.cuda.Stream) -> Tensor:
        self._lanes.settle(self)
        part = self._at(box)
        x = torch.empty(box.shape, dtype=part.dtype, device=device)
        lane.wait_stream(torch.cuda.current_stream(device))  # which may still use the memory of x
        if self._written is not None:
            lane.wait_event(self._written)
        if not self._is_pinned:
            part = pinned_like(part).copy_(part)
        with torch.cuda.stream(lane):
            copy_box(x, part)
        return x

    def read(self, box: Box, device: torch.device) -> Tensor:
        x = self.fetch(box, device)
        torch.cuda.current_stream(device).wait_stream(self._lanes.into)
        return x

    def write(self, box: Box, x: Tensor) -> None:
        part, lane = self._at(box), self._lanes.out
        x = x.to(self._lanes.device, part.dtype).expand(part.shape).contiguous()
        target = part if self._is_pinned else pinned_like(part)
        lane.wait_stream(torch.cuda.current_stream(self._lanes.device))
        with torch.cuda.stream(lane):
            copy_box(target, x)
        self._written = lane.record_event()
        self._lanes.leave(Leaving(x, self._written, self, None if self._is_pinned else partial(part.copy_, target)))

    def before_adding(self, box: Box) -> tuple[Tensor, torch.cuda.Event]:
        lane = self._lanes.back  # boxes of the next tile, which travel too, are not waited for
        return self._fetch(box, self._lanes.device, lane), lane.record_event()

    def add(self, box: Box, x: Tensor, before: tuple[Tensor, torch.cuda.Event] | None = None) -> None:
        total, arrived = before or self.before_adding(box)
        torch.cuda.current_stream(self._lanes.device).wait_event(arrived)
        self.write(box, total.add_(x))

    def release(self) -> None:
        if self.tensor is not None and self._is_pinned:
            self._lanes.give_up(self.tensor)
        super().release()


def pinned_like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device="cpu", pin_memory=x.numel() > 0)


def copy_box(target: Tensor, source: Tensor) -> None:
    """Copy between a part of pinned memory and a dense tensor of a device, on the current stream, without waiting."""
    host, dense = (source, target) if target.is_cuda else (target, source)
    levels = levels_of(host)
    if host.is_contiguous() or not levels:
        target.copy_(source, non_blocking=True)
        return
    width, step = levels.pop()
    if runtime is None or step != 1 or levels[-1][1] < width or levels[-1][1] * host.itemsize > LONGEST_PITCH:
        torch.cuda.current_stream(dense.device).synchronize()  # torch's copy of rows does not wait
        target.copy_(source)
        return
    rows, pitch = levels.pop()
    planes, between = levels.pop() if levels and levels[-1][1] % pitch == 0 else (1, rows * pitch)
    size, stream = host.itemsize, torch.cuda.current_stream(dense.device).cuda_stream
    for i, index in enumerate(np.ndindex(*(n for n, _ in levels))):
        start = sum(j * stride for j, (_, stride) in zip(index, levels, strict=True))
        in_host = runtime.make_cudaPitchedPtr(
            host.data_ptr() + start * size, pitch * size, width * size, between // pitch
        )
        in_dense = runtime.make_cudaPitchedPtr(
            dense.data_ptr() + i * planes * rows * width * size, width * size, width * size, rows
        )
        call: Any = runtime.cudaMemcpy3DParms()
        call.srcPtr, call.dstPtr = (in_host, in_dense) if target.is_cuda else (in_dense, in_host)
        call.extent = runtime.make_cudaExtent(width * size, rows, planes)
        call.kind = runtime.cudaMemcpyKind.cudaMemcpyDefault
        (failed,) = runtime.cudaMemcpy3DAsync(call, stream)
        if int(failed):
            raise RuntimeError(f"a copy between the host and {dense.device} failed: {failed}")


def levels_of(x: Tensor) -> list[tuple[int, int]]:
    """The extents and strides of a tensor, in as few dims as its memory allows."""
    found: list[tuple[int, int]] = []
    for n, stride in zip(x.shape, x.stride(), strict=True):
        if found and found[-1][1] == n * stride:
            found[-1] = found[-1][0] * n, stride
        elif n > 1:
            found.append((n, stride))
    return found
