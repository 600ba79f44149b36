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
from contextlib import contextmanager
from ctypes import c_ubyte
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from torch import Tensor

from ...grid import Box, Shape
from .. import disk
from .chunks import CHUNK, Memory, checksum, chunks_of, chunks_of_memory, is_plain_memory, memory_at
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
    """A block to be written: the tensor that it belongs to, its box (None: the whole), its shape, and its values."""

    key: str
    code: str
    box: Box | None
    shape: Shape
    data: Tensor
    """The values; if they have an address, whatever keeps the memory there."""
    address: int
    """Where the values lie in host memory just as they are stored; 0: not known."""
    nbytes: int


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
        with Summing() as summing:
            sums = _write_blocks(fd, ordered, summing)
            with _syncing(fd, aside=len(blocks) >= PACK_FROM):
                texts = [text if isinstance(text, str) else checksum(text) for text in sums]
            later = summing.results()
    finally:
        os.close(fd)
    placed, offset = [], len(header)
    for block, text in zip(ordered, texts, strict=True):
        placed.append((block, offset, text or next(later)))
        offset += block.nbytes
    return Written(StoredFile(path.name, offset, len(header), checksum(header)), placed)


def _write_blocks(fd: int, blocks: Sequence[Block], summing: Summing) -> list[str | Memory]:
    """Write the blocks one after the other.

    For each, the checksums of its chunks; or the memory of which one is still to be made; or nothing, if `summing` does.
    """
    sums: list[str | Memory] = []
    waiting: list[memoryview | Memory] = []
    size = 0
    for block in blocks:
        address = block.address or (block.data.data_ptr() if is_plain_memory(block.data) else 0)
        if not address:
            parts = []
            for chunk in chunks_of(block.data):
                parts.append(checksum(chunk))
                waiting.append(chunk)
                size += len(chunk)
                if size >= FLUSH_AT:
                    disk.write(fd, waiting)
                    waiting, size = [], 0
            sums.append("".join(parts))
        elif block.nbytes <= CHUNK:
            view = (c_ubyte * block.nbytes).from_address(address)
            sums.append(view)
            waiting.append(view)
            size += block.nbytes
        else:  # the memory stays as it is, so it is summed while it is written
            sums.append("")
            summing.add(memory_at(address, block.nbytes))
            waiting.append(memory_at(address, block.nbytes))
            size += FLUSH_AT
        if size >= FLUSH_AT:
            disk.write(fd, waiting)
            waiting, size = [], 0
    disk.write(fd, waiting)
    return sums


@contextmanager
def _syncing(fd: int, aside: bool) -> Iterator[None]:
    """Sync the file while the body runs (`aside`), or after it; raise what goes wrong with that."""
    if not aside:
        yield
        disk.sync(fd)
        return
    errors: list[Exception] = []

    def sync() -> None:
        try:
            disk.sync(fd)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=sync, name="gridwise-sync")
    if not started(thread):
        yield
        disk.sync(fd)
        return
    try:
        yield
    finally:
        thread.join()
    if errors:
        raise errors[0]


def started(thread: threading.Thread) -> bool:
    """Start a thread, if that can be done: Python 3.12 refuses when the program is over, a system when it has too many."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


class Summing:
    """A thread that computes the checksums of memory while that is written.

    Not an executor of concurrent.futures: these refuse work when the program ends, and a save in the background goes on.
    """

    def __init__(self) -> None:
        self._memory: SimpleQueue[memoryview | None] = SimpleQueue()
        self._sums: list[str] = []
        self._thread: threading.Thread | None = None

    def add(self, memory: memoryview) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="gridwise-checksums")
            if not started(thread):
                self._sums.append("".join(map(checksum, chunks_of_memory(memory))))
                return
            self._thread = thread
        self._memory.put(memory)

    def _run(self) -> None:
        while (memory := self._memory.get()) is not None:
            self._sums.append("".join(map(checksum, chunks_of_memory(memory))))

    def results(self) -> Iterator[str]:
        """The checksums of all that was added, in that order."""
        self._end()
        return iter(self._sums)

    def _end(self) -> None:
        if self._thread is not None:
            self._memory.put(None)
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Summing:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def sums_of(block: Block) -> str:
    """The checksums of a block's chunks, one after the other."""
    if block.address:
        return "".join(map(checksum, chunks_of_memory(memory_at(block.address, block.nbytes))))
    return "".join(map(checksum, chunks_of(block.data)))


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
            packed += size // ITEMSIZE[block.code]
        else:
            close_pack()
            code, shape = _as_stored(block.code, block.shape)
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
