"""One worker's data file: a safetensors file that any safetensors tool opens.

    8 bytes    length of the header, little endian
    header     JSON: name -> dtype, shape, data_offsets; "__metadata__" with the save's id; padded to 64 bytes
    data       block after block without gaps, larger element sizes first, so that every block is aligned

A block is named by the key of its tensor, with its box in brackets if it is not the whole: `conv.weight[0:4,0:8]`. In a
file with very many small blocks, an entry for each would take more room than its data: there the small blocks of one
dtype share an entry `~packed.0`, and only the manifest tells them apart.

Checksums are computed while the bytes are written, from the tensors' own memory; no copy of the state is made.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_ubyte
from dataclasses import dataclass
from itertools import groupby, islice
from queue import Queue
from typing import NamedTuple

from torch import Tensor

from ...grid import Box, Shape
from .. import disk
from ..store_path import Place
from .chunks import (
    CHUNK,
    Memory,
    checksum,
    chunks_of,
    chunks_of_memory,
    is_plain_memory,
    memory_at,
    number_of_chunks,
)
from .manifest import ITEMSIZE, StoredFile

PACK_FROM = 1024
"""Number of blocks in a file from which on small ones are packed."""

PACKED_BELOW = 16 << 10
"""Bytes below which a block is small, and may be packed with others."""

FLUSH_AT = 4 * CHUNK
"""Bytes that are collected before they are written."""

ALIGNMENT = 64
ID_KEY = "gridwise_id"


class Block(NamedTuple):
    """A block to be written: the tensor that it belongs to, its box (None: the whole), its shape, and its values."""

    key: str
    code: str
    box: Box | None
    shape: Shape
    data: Tensor
    """The values; if there is an `address`, any tensor that keeps that memory alive."""
    address: int
    """Where the values lie in host memory exactly as they are stored; 0 if unknown."""
    nbytes: int


@dataclass
class Written:
    """A file that is on the disk, and where its blocks lie: for each, the offset and the checksums of its chunks."""

    file: StoredFile
    blocks: list[tuple[Block, int, str]]


def write_data_file(path: Place, save_id: str, blocks: Sequence[Block]) -> Written:
    """Write and sync a data file with these blocks."""
    ordered = sorted(blocks, key=lambda block: -ITEMSIZE[block.code])
    header = header_of(ordered, {"format": "pt", ID_KEY: save_id})
    with Checksums() as checksums, disk.new_file(path) as put:
        put([memoryview(header)])
        _write_blocks(put, ordered, checksums)
    sums = iter(checksums.results())
    placed, offset = [], len(header)
    for block in ordered:
        placed.append((block, offset, "".join(islice(sums, number_of_chunks(block.nbytes)))))
        offset += block.nbytes
    return Written(StoredFile(path.name, offset, len(header), checksum(header)), placed)


def _write_blocks(put: Callable[[disk.Buffers], None], blocks: Sequence[Block], checksums: Checksums) -> None:
    """Write the blocks one after the other while the checksums of their chunks are computed."""
    waiting: list[memoryview | Memory] = []
    size = 0
    for block in blocks:
        for chunk in _chunks(block):
            waiting.append(chunk)
            size += len(chunk)
            if size >= FLUSH_AT:
                checksums.add(waiting)
                put(waiting)
                waiting, size = [], 0
    checksums.add(waiting)
    put(waiting)


def _chunks(block: Block) -> Iterable[memoryview | Memory]:
    address = block.address or (block.data.data_ptr() if is_plain_memory(block.data) else 0)
    if address and 0 < block.nbytes <= CHUNK:
        return ((c_ubyte * block.nbytes).from_address(address),)
    return chunks_of_memory(memory_at(address, block.nbytes)) if address else chunks_of(block.data)


class Checksums:
    """The checksums of chunks, computed by a thread while the chunks are written and synced.

    Not an executor of concurrent.futures: those refuse work once the program ends, and a background save goes on then.
    """

    def __init__(self) -> None:
        self._sums: list[str] = []
        self._error: Exception | None = None
        self._batches: Queue[Sequence[memoryview | Memory]] = Queue(maxsize=2)  # copies of chunks must not pile up
        self._thread = threading.Thread(target=self._run, name="gridwise-checksums")
        self._is_running = started(self._thread)

    def add(self, chunks: Sequence[memoryview | Memory]) -> None:
        if not self._is_running:
            self._sums += map(checksum, chunks)
        elif chunks:
            self._batches.put(chunks)

    def _run(self) -> None:
        while chunks := self._batches.get():
            try:
                self._sums += map(checksum, chunks)
            except Exception as error:  # or `add` would wait for a thread that has ended
                self._error = error

    def results(self) -> list[str]:
        """The checksums of all chunks, in the order in which they were added."""
        if self._error is not None:
            raise self._error
        return self._sums

    def __enter__(self) -> Checksums:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_running:
            self._batches.put(())
            self._thread.join()


def started(thread: threading.Thread) -> bool:
    """Start a thread; False if it cannot be: Python 3.12 refuses at exit, the system if it has too many threads."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def sums_of(block: Block) -> str:
    """The checksums of a block's chunks, concatenated."""
    return "".join(map(checksum, _chunks(block)))


def header_of(blocks: Sequence[Block], metadata: dict[str, str], pack_from: int | None = PACK_FROM) -> bytes:
    """The first bytes of the file: the length, then the JSON that names the blocks."""
    entries: dict[str, str] = {"__metadata__": json.dumps(metadata, separators=(",", ":"))}
    packs = pack_from is not None and len(blocks) >= pack_from
    offset = 0
    for (is_packed, code), group in groupby(blocks, lambda block: (packs and block.nbytes < PACKED_BELOW, block.code)):
        if is_packed:
            size = sum(block.nbytes for block in group)
            entries[f"~packed.{len(entries) - 1}"] = _entry(code, (size // ITEMSIZE[code],), offset, offset + size)
            offset += size
            continue
        for block in group:
            entries[_entry_name(block, entries)] = _entry(code, block.shape, offset, offset + block.nbytes)
            offset += block.nbytes
    text = "{" + ",".join(f"{json.dumps(name)}:{entry}" for name, entry in entries.items()) + "}"
    data = text.encode("ascii")
    padded = -(-(8 + len(data)) // ALIGNMENT) * ALIGNMENT - 8
    return padded.to_bytes(8, "little") + data.ljust(padded)


def _entry(code: str, shape: Shape, start: int, stop: int) -> str:
    if code == "C128":
        code, shape = "F64", (*shape, 2)
    elif code == "F4":
        shape = (*shape[:-1], 2 * math.prod(shape[-1:]))
    return f'{{"dtype":"{code}","shape":[{",".join(map(str, shape))}],"data_offsets":[{start},{stop}]}}'


def _entry_name(block: Block, taken: dict[str, str]) -> str:
    name = block.key
    if block.box is not None:
        ranges = zip(block.box.start, block.box.stop, strict=True)
        name += f"[{','.join(f'{a}:{b}' for a, b in ranges)}]"
    while name in taken:
        name += "~"
    return name
