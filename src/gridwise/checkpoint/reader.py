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

import os
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import CheckpointDamaged, describe
from .chunks import checksum
from .datafile import ID_KEY
from .manifest import Manifest, StoredFile
from .units import Unit, goes_nowhere, is_done, put, size_of, spans_of, tensors_of, views_of

KEEP = 48 << 20
"""Bytes of checked data that are kept for `fill`."""

SMALL = 128 << 10
THREADS = max(1, min(4, os.cpu_count() or 1))
MOST_NAMED = 8

Progress = Callable[[int], None]
"""Called with the number of bytes that were just read."""


class Reader:
    """The open data files of a checkpoint, and the units to be read from them."""

    def __init__(self, path: Path, manifest: Manifest, units: Sequence[Unit]) -> None:
        self.path = path
        self.files = manifest.files
        self.folder = path / manifest.folder
        self.save_id = manifest.id
        self.spans = list(spans_of(units))
        self.kept: dict[int, memoryview] = {}
        # Small units are the interpreter's work, of which threads do not get more done.
        self.threads = THREADS if sum(unit.size for unit in units) > len(units) * SMALL else 1
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
        file = self.files[unit.file]
        self._fds[unit.file] = open_data_file(self.folder / file.name, file, unit.key, self.save_id)

    # The two passes

    def check(self, progress: Progress | None = None) -> None:
        """Read all units and compare their checksums; raise `CheckpointDamaged` naming files and tensors."""
        self._run(self._check_span, range(len(self.spans)), progress, "Nothing was changed.")

    def fill(self, progress: Progress | None = None) -> None:
        """Put the values into place, checking those that are read again."""
        left = [place for place, span in enumerate(self.spans) if not is_done(span)]
        self._run(
            self._fill_span,
            left,
            progress,
            "It was whole when it was checked, and has changed since: what was to be filled now holds a mixture.",
        )

    def _run(
        self, work: Callable[[int], list[str]], places: Sequence[int], progress: Progress | None, tail: str
    ) -> None:
        problems: list[str] = []

        def one_in_so_many(first: int) -> None:
            for place in places[first :: self.threads]:
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
            raise CheckpointDamaged(
                describe(f"the checkpoint {self.path} is damaged. {tail}", [*shown[:MOST_NAMED], *more])
            )

    def _check_span(self, place: int) -> list[str]:
        span = self.spans[place]
        if all(unit.fresh and unit.direct is not None for unit in span):
            return self._read_into(span, [unit.direct for unit in span if unit.direct is not None])
        data = self._buffer(size_of(span), place)
        views = list(views_of(span, data))
        problems = self._read_into(span, [data], views)
        if not problems:
            for unit, view in zip(span, views, strict=True):
                if unit.fresh:
                    put(unit, view)
        return problems

    def _fill_span(self, place: int) -> list[str]:
        span = self.spans[place]
        kept = self.kept.pop(place, None)
        problems: list[str] = []
        if kept is None and all(unit.direct is not None for unit in span):
            return self._read_into(span, [unit.direct for unit in span if unit.direct is not None])
        views = list(views_of(span, kept if kept is not None else self._buffer(size_of(span))))
        if kept is None:
            problems = self._read_into(span, views)
        if not problems:
            for unit, view in zip(span, views, strict=True):
                if not unit.fresh:
                    put(unit, view)
        return problems

    def _buffer(self, size: int, keep_for: int | None = None) -> memoryview:
        """Memory to read into; kept for `fill` while there is room, else the thread's own, used again and again."""
        if keep_for is not None and not all(unit.fresh or goes_nowhere(unit) for unit in self.spans[keep_for]):
            with self._lock:
                fits = self._keeping + size <= KEEP
                self._keeping += size if fits else 0
            if fits:
                self.kept[keep_for] = memoryview(bytearray(size))
                return self.kept[keep_for]
        if len(getattr(_own, "buffer", b"")) < size:
            _own.buffer = memoryview(bytearray(size))
        return _own.buffer[:size]

    def _read_into(
        self, span: list[Unit], buffers: list[memoryview], views: list[memoryview] | None = None
    ) -> list[str]:
        """Read a span into the buffers and compare the checksums of its units; what is wrong, if anything."""
        name = self.files[span[0].file].name
        try:
            missing = _read(self._fds[span[0].file], span[0].offset, buffers)
        except OSError as error:
            return [f"file {self.folder.name}/{name}, {tensors_of(span)}: cannot be read: {error}"]
        if missing:
            return [f"file {self.folder.name}/{name}, {tensors_of(span)}: {missing} bytes are missing"]
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
