"""Read blocks of stored tensors into memory: check every byte first, then put it into place.

    wants      this worker's boxes of stored tensors, and the memory they go to
    units      the chunks that hold them; chunks that lie side by side are read together
    check()    reads every unit and compares its checksum; nothing of the caller's is changed
    fill()     puts the values into place: from what `check` has kept, else by reading again, straight into place

Checking a large state before changing any of it means reading it twice, the second time from the system's memory. What
fits into `KEEP` bytes is kept between the two, and memory that is new (a deferred parameter, a result without `into`) is
filled by the first reading. Never more than `KEEP` and one chunk per thread is allocated.
"""

from __future__ import annotations

import math
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointDamaged, describe
from ..grid import Box, Boxes, Shape
from .chunks import CHUNK, DIGITS, boxes_of_range, checksum, chunk_range, is_plain_memory, memory
from .datafile import ID_KEY
from .disk import MOST_BUFFERS
from .manifest import ITEMSIZE, Manifest, StoredBlock, StoredFile, StoredTensor

KEEP = 48 << 20
"""Bytes of checked data that are kept for `fill`."""

THREADS = max(1, min(4, os.cpu_count() or 1))
MOST_NAMED = 8

Progress = Callable[[int], None]
"""Called with the number of bytes that were just read."""


class Want(NamedTuple):
    """A box (None: the whole) of a stored tensor, and the tensor that is to hold it; `fresh` if nobody uses that yet."""

    key: str
    stored: StoredTensor
    target: Tensor
    box: Box | None
    fresh: bool


class Unit(NamedTuple):
    """A chunk to read: where it lies, its checksum, and where its bytes go (`direct`, or `Scatter`, or nowhere)."""

    file: int
    offset: int
    size: int
    sum: str
    key: str
    direct: memoryview | None
    scatter: Scatter | None
    fresh: bool


class Scatter(NamedTuple):
    """Elements ``[start, stop)`` of a block of `shape`, of which `inside` belongs into `target` (both boxes as shifted)."""

    dtype: torch.dtype
    shape: Shape
    start: int
    stop: int
    inside: Box
    target: Tensor

    def put(self, data: memoryview) -> None:
        flat = torch.frombuffer(data, dtype=self.dtype)
        done = 0
        for box in boxes_of_range(self.shape, self.start, self.stop):
            common = box.intersect(self.inside)
            if common is not None:
                source = flat[done : done + box.volume].view(box.shape)[common.relative_to(box).slices]
                self.target[common.relative_to(self.inside).slices].copy_(source)
            done += box.volume


def units_of(want: Want) -> Iterator[Unit]:
    """The chunks that hold what is wanted."""
    stored, target = want.stored, want.target
    plain = is_plain_memory(target) and target.dtype == stored.dtype
    if want.box is None and plain and len(stored.blocks) == 1:
        yield from _whole_units(want, stored.blocks[0])
        return
    box = want.box if want.box is not None else Box.of_shape(stored.shape)
    boxes = stored.boxes()
    found = 0
    for place, common in Boxes.of(enumerate(boxes)).pieces(box):
        found += common.volume
        yield from _piece_units(want, stored.blocks[place], boxes[place], common, common.relative_to(box), plain)
    if found != box.volume:
        raise CheckpointDamaged(f"{want.key!r}: {found} of the {box.volume} wanted elements are in the checkpoint.")


def _whole_units(want: Want, block: StoredBlock) -> Iterator[Unit]:
    file, offset, sums, _ = block
    view = memory(want.target)
    if len(view) <= CHUNK:
        yield Unit(file, offset, len(view), sums, want.key, view, None, want.fresh)
        return
    for chunk, start in enumerate(range(0, len(view), CHUNK)):
        part = view[start : start + CHUNK]
        text = sums[chunk * DIGITS : (chunk + 1) * DIGITS]
        yield Unit(file, offset + start, len(part), text, want.key, part, None, want.fresh)


def _piece_units(want: Want, block: StoredBlock, box: Box, common: Box, place: Box, plain: bool) -> Iterator[Unit]:
    itemsize = ITEMSIZE[want.stored.code]
    shape, inside = box.shape, common.relative_to(box)
    volume, per_chunk = box.volume, CHUNK // itemsize
    from_flat, to_flat = _flat_start(shape, inside), _flat_start(tuple(want.target.shape), place)
    view = memory(want.target) if plain and from_flat is not None and to_flat is not None else None
    target = want.target[place.slices]
    for chunk in chunk_range(shape, itemsize, inside):
        start, stop = chunk * per_chunk, min((chunk + 1) * per_chunk, volume)
        direct = None
        if view is not None and from_flat is not None and to_flat is not None:
            if from_flat <= start and stop <= from_flat + common.volume:
                at = (to_flat + start - from_flat) * itemsize
                direct = view[at : at + (stop - start) * itemsize]
        scatter = None if direct is not None else Scatter(want.stored.dtype, shape, start, stop, inside, target)
        text = block.sums[chunk * DIGITS : (chunk + 1) * DIGITS]
        offset = block.offset + start * itemsize
        yield Unit(block.file, offset, (stop - start) * itemsize, text, want.key, direct, scatter, want.fresh)


def _flat_start(shape: Shape, box: Box) -> int | None:
    """Where a box starts in the flat index of `shape`, if it is one run of it; else None."""
    dims = list(range(len(shape)))
    while dims and box.start[dims[-1]] == 0 and box.stop[dims[-1]] == shape[dims[-1]]:
        dims.pop()
    if any(box.shape[d] != 1 for d in dims[:-1]):
        return None
    return sum(a * math.prod(shape[d + 1 :]) for d, a in enumerate(box.start))


class Reader:
    """The open data files of a checkpoint, and the units to be read from them."""

    def __init__(self, path: Path, manifest: Manifest, units: Sequence[Unit], threads: int = THREADS) -> None:
        self.path = path
        self.files = manifest.files
        self.folder = path / manifest.folder
        self.save_id = manifest.id
        self.spans = list(_spans(units))
        self.kept: dict[int, memoryview] = {}
        self.threads = threads
        self._keeping = 0
        self._lock = threading.Lock()
        self._fds: dict[int, int] = {}
        try:
            for first in {span[0].file: span[0] for span in self.spans}.values():
                self._open(first)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        self.kept.clear()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, unit: Unit) -> None:
        """Open a data file and check that it is the one that was saved; `unit` is a tensor that it holds."""
        self._fds[unit.file] = open_data_file(self.folder / self.files[unit.file].name, self.files[unit.file], unit.key, self.save_id)

    # The two passes

    def check(self, progress: Progress | None = None) -> None:
        """Read all units and compare their checksums; raise `CheckpointDamaged` naming files and tensors."""
        self._run(self._check_span, range(len(self.spans)), progress, "Nothing was changed.")

    def fill(self, progress: Progress | None = None) -> None:
        """Put the values into place, checking those that are read again."""
        left = [place for place, span in enumerate(self.spans) if not _is_done(span)]
        self._run(self._fill_span, left, progress, "It was whole when it was checked, and has changed since: what was to be "
                  "filled now holds a mixture.")

    def _run(self, work: Callable[[int], list[str]], places: Sequence[int], progress: Progress | None, tail: str) -> None:
        problems: list[str] = []

        def one_in_so_many(first: int) -> None:
            for place in places[first::self.threads]:
                problems.extend(work(place))
                if progress is not None:
                    progress(sum(unit.size for unit in self.spans[place]))

        if self.threads == 1 or len(places) < 4:
            for first in range(self.threads):
                one_in_so_many(first)
        else:
            with ThreadPoolExecutor(self.threads, "gridwise-read") as pool:
                list(pool.map(one_in_so_many, range(self.threads)))
        if problems:
            shown = sorted(set(problems))
            more = [f"... and {len(shown) - MOST_NAMED} more"] if len(shown) > MOST_NAMED else []
            raise CheckpointDamaged(describe(f"the checkpoint {self.path} is damaged. {tail}", [*shown[:MOST_NAMED], *more]))

    def _check_span(self, place: int) -> list[str]:
        span = self.spans[place]
        if all(unit.fresh and unit.direct is not None for unit in span):
            return self._read_into(span, [unit.direct for unit in span if unit.direct is not None])
        data = self._buffer(_size(span), place)
        views = list(_views(span, data))
        problems = self._read_into(span, [data], views)
        if not problems:
            for unit, view in zip(span, views, strict=True):
                if unit.fresh:
                    _put(unit, view)
        return problems

    def _fill_span(self, place: int) -> list[str]:
        span = self.spans[place]
        kept = self.kept.pop(place, None)
        problems: list[str] = []
        if kept is None and all(unit.direct is not None for unit in span):
            return self._read_into(span, [unit.direct for unit in span if unit.direct is not None])
        views = list(_views(span, kept if kept is not None else self._buffer(_size(span))))
        if kept is None:
            problems = self._read_into(span, views)
        if not problems:
            for unit, view in zip(span, views, strict=True):
                if not unit.fresh:
                    _put(unit, view)
        return problems

    def _buffer(self, size: int, keep_for: int | None = None) -> memoryview:
        """Memory to read into; kept for `fill` while there is room, else the thread's own, used again and again."""
        if keep_for is not None and not all(unit.fresh or _goes_nowhere(unit) for unit in self.spans[keep_for]):
            with self._lock:
                fits = self._keeping + size <= KEEP
                self._keeping += size if fits else 0
            if fits:
                self.kept[keep_for] = memoryview(bytearray(size))
                return self.kept[keep_for]
        if len(getattr(_own, "buffer", b"")) < size:
            _own.buffer = memoryview(bytearray(size))
        return _own.buffer[:size]

    def _read_into(self, span: list[Unit], buffers: list[memoryview], views: list[memoryview] | None = None) -> list[str]:
        """Read a span into the buffers and compare the checksums of its units; what is wrong, if anything."""
        name = self.files[span[0].file].name
        try:
            missing = _read(self._fds[span[0].file], span[0].offset, buffers)
        except OSError as error:
            return [f"file {self.folder.name}/{name}, {_tensors(span)}: cannot be read: {error}"]
        if missing:
            return [f"file {self.folder.name}/{name}, {_tensors(span)}: {missing} bytes are missing"]
        problems = []
        for unit, view in zip(span, views if views is not None else buffers, strict=True):
            found = checksum(view)
            if found != unit.sum:
                problems.append(
                    f"file {self.folder.name}/{name}, tensor {unit.key!r}: bytes {unit.offset} to {unit.offset + unit.size} "
                    f"have the checksum {found}, saved was {unit.sum}"
                )
        return problems


_own = threading.local()


def _goes_nowhere(unit: Unit) -> bool:
    return unit.direct is None and unit.scatter is None


def _is_done(span: list[Unit]) -> bool:
    return all(unit.fresh or _goes_nowhere(unit) for unit in span)


def _put(unit: Unit, data: memoryview) -> None:
    if unit.direct is not None:
        unit.direct[:] = data
    elif unit.scatter is not None:
        unit.scatter.put(data)


def _spans(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Units that lie side by side in a file, up to a chunk's bytes together."""
    span: list[Unit] = []
    size = 0
    for unit in sorted(units, key=lambda unit: (unit.file, unit.offset)):
        if not unit.size:
            continue
        last = span[-1] if span else None
        adjoins = last is not None and last.file == unit.file and last.offset + last.size == unit.offset
        if not adjoins or size + unit.size > CHUNK or len(span) == MOST_BUFFERS:
            if span:
                yield span
            span, size = [], 0
        span.append(unit)
        size += unit.size
    if span:
        yield span


def _size(span: list[Unit]) -> int:
    return span[-1].offset + span[-1].size - span[0].offset


def _views(span: list[Unit], data: memoryview) -> Iterator[memoryview]:
    first = span[0].offset
    return (data[unit.offset - first : unit.offset - first + unit.size] for unit in span)


def _tensors(span: list[Unit]) -> str:
    keys = list(dict.fromkeys(unit.key for unit in span))
    named = ", ".join(repr(key) for key in keys[:3])
    return f"tensor {named}{', ...' * (len(keys) > 3)}"


def _read(fd: int, offset: int, buffers: list[memoryview]) -> int:
    """Fill the buffers from `offset` on; the number of bytes that are not there."""
    left = buffers
    total = sum(map(len, buffers))
    while total:
        done = os.preadv(fd, left, offset)
        if done == 0:
            return total
        total -= done
        offset += done
        if total:
            left = list(left)
            while done >= len(left[0]):
                done -= len(left.pop(0))
            left[0] = left[0][done:]
    return 0


def open_data_file(path: Path, stored: StoredFile, key: str, save_id: str) -> int:
    """A descriptor of the data file `path`, after checking kind, size and header; `key` is a tensor that it holds."""
    says = f"file {path.parent.name}/{path.name}, tensor {key!r}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise MissingFile(f"{says}: the file is missing from {path.parent}. Nothing was changed.") from None
    except OSError as error:
        raise CheckpointDamaged(f"{says}: cannot be opened: {error}. Nothing was changed.") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointDamaged(f"{says}: this is no regular file. Nothing was changed.")
        if status.st_size != stored.size:
            raise CheckpointDamaged(
                f"{says}: the file has {status.st_size} bytes, saved were {stored.size}. Nothing was changed."
            )
        header = memoryview(bytearray(stored.header))
        missing = _read(fd, 0, [header])
        if missing or checksum(header) != stored.header_sum:
            hint = "" if f'"{ID_KEY}":"{save_id}"'.encode() in bytes(header) else ", it belongs to another save"
            raise CheckpointDamaged(f"{says}: the header is not the one that was saved{hint}. Nothing was changed.")
    except OSError as error:
        os.close(fd)
        raise CheckpointDamaged(f"{says}: cannot be read: {error}. Nothing was changed.") from None
    except BaseException:
        os.close(fd)
        raise
    return fd


class MissingFile(CheckpointDamaged):
    """A data file is not there: removed, or replaced by a newer save while it was being opened."""
