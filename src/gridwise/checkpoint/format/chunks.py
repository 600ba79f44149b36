"""Chunks: the pieces of 1 MiB in which blocks are checksummed, written and read.

A block is stored row-major and cut into chunks, the last one shorter. Each chunk has a checksum of its own, so a worker
that needs a part of a block reads and checks the chunks that hold it and nothing else. A chunk is a range of the flat
index; `grid.boxes_of_range` gives the boxes of the block that it covers.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
import xxhash
from torch import Tensor

from ...grid import Box, Shape, boxes_of_range, flat_span

CHUNK = 1 << 20
"""Bytes per chunk: a multiple of every element size."""

DIGITS = 16
"""Hexadecimal digits of one checksum (XXH3, 64 bits)."""


Memory: TypeAlias = "ctypes.Array[ctypes.c_ubyte]"
"""Bytes at an address, without a copy; the owner of the memory must outlive it."""


def checksum(data: bytes | bytearray | memoryview | Memory) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def memories(addresses: Sequence[int], sizes: Sequence[int]) -> list[Memory]:
    """The bytes at each address."""
    at = {size: (ctypes.c_ubyte * size).from_address for size in set(sizes)}
    return [at[size](address) for address, size in zip(addresses, sizes, strict=True)]


def checksums(data: Sequence[memoryview | Memory]) -> np.ndarray:
    """The checksums as unsigned 64-bit integers."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, data), dtype=np.uint64, count=len(data))


def sum_at(sums: str, chunk: int) -> int:
    """The checksum of one chunk, out of the concatenated `sums` of a block."""
    return int(sums[chunk * DIGITS : (chunk + 1) * DIGITS], 16)


def memory_at(address: int, size: int) -> memoryview:
    """A view of the bytes at an address; the owner of the memory must outlive it."""
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def memory_address(data: memoryview) -> int:
    """The address of bytes; in files of other programs, tensors need not be aligned for their dtype."""
    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data) if len(data) else 0


def is_plain_memory(x: Tensor) -> bool:
    """Whether the values lie in host memory exactly as they are stored: row-major, not lazily conjugated or negated."""
    return x.device.type == "cpu" and x.is_contiguous() and not x.is_conj() and not x.is_neg()


def number_of_chunks(nbytes: int) -> int:
    return -(-nbytes // CHUNK)


def chunks_of_memory(data: memoryview) -> Iterator[memoryview]:
    return (data[start : start + CHUNK] for start in range(0, len(data), CHUNK))


def chunks_of(x: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor, chunk by chunk; from its own memory where possible, else copied one chunk at a time."""
    if is_plain_memory(x):
        yield from chunks_of_memory(memory_at(x.data_ptr(), x.nbytes))
        return
    per_chunk = CHUNK // x.element_size()
    for start in range(0, x.numel(), per_chunk):
        yield _copied(x, start, min(start + per_chunk, x.numel()))


def _copied(x: Tensor, start: int, stop: int) -> memoryview:
    buffer = bytearray((stop - start) * x.element_size())
    flat = torch.frombuffer(buffer, dtype=x.dtype)
    done = 0
    for box in boxes_of_range(tuple(x.shape), start, stop):
        flat[done : done + box.volume].view(box.shape).copy_(x[box.slices])
        done += box.volume
    return memoryview(buffer)


def chunk_range(shape: Shape, itemsize: int, wanted: Box) -> Iterator[int]:
    """The chunks of a block of `shape` that hold elements of `wanted`, a box in the block's coordinates."""
    if wanted.volume == 0:
        return
    per_chunk = CHUNK // itemsize
    first, after = flat_span(shape, wanted)
    is_run = wanted.volume == after - first
    for chunk in range(first // per_chunk, (after - 1) // per_chunk + 1):
        start, stop = chunk * per_chunk, min((chunk + 1) * per_chunk, math.prod(shape))
        if is_run or any(box.intersect(wanted) for box in boxes_of_range(shape, start, stop)):
            yield chunk
