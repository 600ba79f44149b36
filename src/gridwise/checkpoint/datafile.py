"""One worker's data file: a safetensors file that any safetensors tool opens.

    8 bytes    length of the header, little endian
    header     JSON: name -> dtype, shape, data_offsets; "__metadata__" with the id of the save; spaces up to 64 bytes
    data       block after block without gaps, larger element sizes first, so that every block is aligned

A block has the key of its tensor as its name, with the box in brackets if it is not the whole: `conv.weight[0:4,0:8]`.
Where a file has very many small blocks, naming each would cost more than their bytes are worth: there the small ones of
one dtype share an entry `~packed.0`, and only the manifest tells them apart.

Checksums are computed while the bytes are written, from the tensors' own memory; no copy of the state is made.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from torch import Tensor

from ..grid import Box, Shape
from . import disk
from .chunks import CHUNK, checksum, chunks_of, is_plain_memory, memory
from .manifest import ITEMSIZE, StoredFile

PACK_FROM = 1024
"""Blocks in a file from which on small ones are packed."""

SMALL = 16 << 10
"""Bytes below which a block is small."""

FLUSH_AT = 4 * CHUNK
"""Bytes that are handed to the system in one call."""

ALIGNMENT = 64
ID_KEY = "gridwise_id"


class Block(NamedTuple):
    """A block to be written: the tensor that it belongs to, its box (None: the whole), and its values."""

    key: str
    code: str
    box: Box | None
    data: Tensor

    @property
    def nbytes(self) -> int:
        return self.data.numel() * ITEMSIZE[self.code]


@dataclass
class Written:
    """A file that is on the disk, and where its blocks lie: for each, the offset and the checksums of its chunks."""

    file: StoredFile
    blocks: list[tuple[Block, int, str]]


def write_data_file(path: Path, save_id: str, blocks: Sequence[Block]) -> Written:
    """Write and sync a data file with these blocks."""
    ordered = sorted(blocks, key=lambda block: -ITEMSIZE[block.code])
    header = header_of(ordered, {"format": "pt", ID_KEY: save_id})
    fd = disk.create(path)
    try:
        disk.write(fd, [memoryview(header)])
        sums = _write_blocks(fd, [block.data for block in ordered])
        disk.sync(fd)
    finally:
        os.close(fd)
    placed, offset = [], len(header)
    for block, text in zip(ordered, sums, strict=True):
        placed.append((block, offset, text))
        offset += block.nbytes
    return Written(StoredFile(path.name, offset, len(header), checksum(header)), placed)


def _write_blocks(fd: int, tensors: Sequence[Tensor]) -> list[str]:
    """Write the tensors one after the other; the checksums of each one's chunks."""
    sums: list[str | None] = []
    waiting: list[memoryview] = []
    size = 0
    with _Summing() as summing:
        for x in tensors:
            if x.numel() * x.element_size() <= CHUNK and is_plain_memory(x):
                view = memory(x)
                sums.append(checksum(view) if view else "")
                waiting.append(view)
                size += len(view)
            elif is_plain_memory(x):  # the memory stays as it is, so it is summed while it is written
                sums.append(None)
                summing.add(x)
                waiting.append(memory(x))
                size += FLUSH_AT
            else:
                parts = []
                for chunk in chunks_of(x):
                    parts.append(checksum(chunk))
                    waiting.append(chunk)
                    size += len(chunk)
                    if size >= FLUSH_AT:
                        disk.write(fd, waiting)
                        waiting, size = [], 0
                sums.append("".join(parts))
            if size >= FLUSH_AT:
                disk.write(fd, waiting)
                waiting, size = [], 0
        disk.write(fd, waiting)
        later = summing.results()
    return [next(later) if text is None else text for text in sums]


class _Summing:
    """A thread that computes the checksums of tensors while they are written.

    Not an executor of concurrent.futures: these refuse work when the program ends, and a save in the background goes on.
    """

    def __init__(self) -> None:
        self._tensors: SimpleQueue[Tensor | None] = SimpleQueue()
        self._sums: list[str] = []
        self._thread: threading.Thread | None = None

    def add(self, x: Tensor) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gridwise-checksums")
            self._thread.start()
        self._tensors.put(x)

    def _run(self) -> None:
        while (x := self._tensors.get()) is not None:
            self._sums.append(sums_of(x))

    def results(self) -> Iterator[str]:
        """The checksums of all tensors, in the order in which they were added."""
        self._end()
        return iter(self._sums)

    def _end(self) -> None:
        if self._thread is not None:
            self._tensors.put(None)
            self._thread.join()
            self._thread = None

    def __enter__(self) -> _Summing:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def sums_of(x: Tensor) -> str:
    """The checksums of a tensor's chunks, one after the other."""
    return "".join(map(checksum, chunks_of(x)))


def header_of(blocks: Sequence[Block], metadata: dict[str, str], pack_from: int | None = PACK_FROM) -> bytes:
    """The first bytes of the file: the length, then the JSON that names the blocks."""
    entries: dict[str, str] = {"__metadata__": json.dumps(metadata, separators=(",", ":"))}
    packs = pack_from is not None and len(blocks) >= pack_from
    offset = packed_from = packed = 0
    packed_code = ""

    def close_pack() -> None:
        nonlocal packed
        if packed:
            code, shape = _as_stored(packed_code, (packed,))
            entries[f"~packed.{len(entries) - 1}"] = _entry(code, shape, packed_from, offset)
        packed = 0

    for block in blocks:
        size = block.nbytes
        if packs and size < SMALL:
            if packed_code != block.code:
                close_pack()
                packed_code = block.code
            if not packed:
                packed_from = offset
            packed += block.data.numel()
        else:
            close_pack()
            code, shape = _as_stored(block.code, tuple(block.data.shape))
            entries[_entry_name(block, entries)] = _entry(code, shape, offset, offset + size)
        offset += size
    close_pack()
    text = "{" + ",".join(f"{json.dumps(name)}:{entry}" for name, entry in entries.items()) + "}"
    data = text.encode("ascii")
    padded = -(-(8 + len(data)) // ALIGNMENT) * ALIGNMENT - 8
    return padded.to_bytes(8, "little") + data.ljust(padded)


def _entry(code: str, shape: Shape, start: int, stop: int) -> str:
    return f'{{"dtype":"{code}","shape":[{",".join(map(str, shape))}],"data_offsets":[{start},{stop}]}}'


def _as_stored(code: str, shape: Shape) -> tuple[str, Shape]:
    return ("F64", (*shape, 2)) if code == "C128" else (code, shape)


def _entry_name(block: Block, taken: dict[str, str]) -> str:
    name = block.key
    if block.box is not None:
        ranges = zip(block.box.start, block.box.stop, strict=True)
        name += f"[{','.join(f'{a}:{b}' for a, b in ranges)}]"
    while name in taken:
        name += "~"
    return name
