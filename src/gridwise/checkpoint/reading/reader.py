"""Read blocks of stored tensors into memory: check every byte first, then put it into place.

    wants      this worker's boxes of stored tensors, and the memory they go to
    reads      the chunks that hold them; adjacent ones, a span, are read together
    check()    compares the checksum of every read; the caller's memory is not changed
    fill()     reads again, straight into place where that is possible; the files must not have changed meanwhile

Checking a large state before changing any of it takes two passes. The first pass checks what is in the page cache
without a copy, and the second copies it from there. What does not fit into the page cache is read from the disk a
second time, and checked a second time. New memory (a deferred parameter, a result without `into`) is filled by the
first pass. Each thread has memory for one span.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ...comm.launching.cores import cores
from ...errors import CheckpointDamaged, CheckpointMismatch
from ..consensus import shortened
from ..format.chunks import Memory, checksums
from ..format.manifest import Manifest, StoredTensor
from ..store_path import Place, StorePath
from .chunk_reads import LONGEST_SPAN, ChunkReads, Span, Want, reads_of_all
from .open_file import DataFile, open_checked
from .shared_memory_targets import shared_memory
from .store_file import THREADS, Kept, StoreFile, open_in_store

MOST_MAPPED = 64
"""Number of files above which none is mapped: a mapping holds a second descriptor."""

SMALL_READ = 128 << 10

LEAST_THREADS = 2
"""One waits for the disk while another hashes, even on a single core."""

MOST_THREADS = 8
"""Several read faster than one, from memory or from a disk; beyond a few, memory bandwidth is the limit."""

MEMORY = 32 << 20
"""Bytes that all threads together may allocate or map at a time."""

MOST_PROBLEMS = 256
"""Number of wrong chunks after which the search stops: a forged file may be all wrong, and of any size."""

Progress = Callable[[int], None]
"""Called with the number of bytes that were just read."""


def number_of_threads(free_cores: int) -> int:
    """The number of threads with which a worker that has this many cores to itself reads large tensors."""
    return max(LEAST_THREADS, min(MOST_THREADS, free_cores))


class Reader:
    """The open data files of a checkpoint, and what is read from them, by several threads."""

    def __init__(self, path: Place, manifest: Manifest, reads: ChunkReads, free_cores: int | None = None) -> None:
        self.path, self.manifest = path, manifest
        self.files = manifest.files
        self.folder: Place = manifest.files_of or path / manifest.folder
        self.has_sums = manifest.files_of is None
        self.save_id = manifest.id
        self.reads = reads.in_order()
        self.nbytes = int(self.reads.sizes.sum())
        self.is_checked = False
        # Small reads are bound by the interpreter, which threads do not speed up.
        small = self.nbytes <= len(self.reads) * SMALL_READ
        self.threads = 1 if small else number_of_threads(cores() if free_cores is None else free_cores)
        if isinstance(path, StorePath):
            self.threads = THREADS
        self.spans = list(self.reads.spans(min(LONGEST_SPAN, MEMORY // self.threads)))
        self._open_files: dict[int, DataFile | StoreFile] = {}
        self._kept = Kept()
        try:
            numbers, firsts = np.unique(self.reads.files, return_index=True)
            for number, first in zip(numbers.tolist(), firsts.tolist(), strict=True):
                self._open_files[number] = self._opened(number, self.reads.keys[first], len(numbers) <= MOST_MAPPED)
        except BaseException:
            self.close()
            raise

    def _opened(self, number: int, key: str, may_map: bool) -> DataFile | StoreFile:
        file = self.files[number]
        path = self.folder / file.name
        if isinstance(path, StorePath):
            return open_in_store(path, file, key, self.save_id, self._kept)
        fd = open_checked(path, file, key, self.save_id if self.has_sums else None)
        return DataFile(fd, file, may_map)

    def close(self) -> None:
        for file in self._open_files.values():
            file.close()
        self._open_files.clear()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The two passes

    def check(self, progress: Progress | None = None) -> None:
        """Compare the checksums of all reads; raise `CheckpointDamaged` naming files and tensors.

        Without checksums there is nothing to compare: only what goes to new memory is read.
        """
        spans = [span for span in self.spans if self.has_sums or self.reads.fresh[slice(*span)].any()]
        self._run(self._check_span, spans, progress, "Nothing was changed.")
        self._check_shared()
        self.is_checked = True

    def _check_shared(self) -> None:
        reads = self.reads
        for first, second, before, size in shared_memory(reads):
            if (
                self.has_sums
                and not before
                and size == reads.sizes[first] == reads.sizes[second]
                and reads.sums[first] == reads.sums[second]
            ):
                continue
            found = []
            for number, offset in ((first, before), (second, 0)):
                data = bytearray(size)
                self._open_files[int(reads.files[number])].read(int(reads.offsets[number]) + offset, [memoryview(data)])
                found.append(data)
            if found[0] != found[1]:
                raise _different(reads.keys[first], reads.keys[second])

    def fill(self, progress: Progress | None = None) -> None:
        """Put the values into place."""
        left = self.reads.have_to_be_put()
        spans = [(start, stop) for start, stop in self.spans if left[start:stop].any()]
        tail = "It was whole when it was checked, and has changed since: what was to be filled now holds a mixture."
        self._run(self._fill_span, spans, progress, tail)
        changed = {number for number, file in self._open_files.items() if file.has_changed()}
        if changed:
            again = [(start, stop) for start, stop in spans if self.reads.files[start] in changed]
            self._run(self._compare_in_place, again, None, tail)

    def _run(
        self,
        work: Callable[[ChunkReads], list[str]],
        spans: Sequence[Span],
        progress: Progress | None,
        tail: str,
    ) -> None:
        problems: list[str] = []
        next_span = iter(spans)  # shared: a thread that is free takes the next one, so the files are read in order

        def take_spans() -> None:
            for ends in next_span:
                if len(problems) >= MOST_PROBLEMS:
                    return
                span = self.reads.cut(ends)
                problems.extend(work(span))
                if progress is not None:
                    progress(span.extent)

        if self.threads == 1 or len(spans) < 4:
            take_spans()
        else:
            with ThreadPoolExecutor(self.threads, "gridwise-read") as pool:
                for done in [pool.submit(take_spans) for _ in range(self.threads)]:
                    done.result()
        if problems:
            lines = shortened(sorted(set(problems)))
            lines += ["the rest was not looked at"] if len(problems) >= MOST_PROBLEMS else []
            raise CheckpointDamaged(f"the checkpoint {self.path} is damaged. {tail}", lines)

    def _check_span(self, span: ChunkReads) -> list[str]:
        if span.fresh.all() and span.go_straight:
            return self._read_into_place(span, trusted=False)
        return self._look(span, fresh=True, may_map=not span.fresh.any())

    def _fill_span(self, span: ChunkReads) -> list[str]:
        if span.go_straight:
            return self._read_into_place(span, trusted=True)
        return self._look(span, fresh=False, may_map=False)

    def _read_into_place(self, span: ChunkReads, trusted: bool) -> list[str]:
        """Read a span straight into place; the problems found.

        If `trusted`, its bytes were checked before, and are not compared again if they are still in the page cache.
        """
        file, first = self._file_of(span), int(span.offsets[0])
        if trusted and file.read_cached(first, span.addresses, span.sizes):
            return []
        places = span.memories()
        try:
            missing = file.read(first, places)
        except OSError as error:
            return [f"{self._title(span)}: cannot be read: {error}"]
        return self._compared(span, places, missing)

    def _compare_in_place(self, span: ChunkReads) -> list[str]:
        """Check what a span has put straight into place; what went through a buffer was checked there."""
        if not self.has_sums:
            return [f"{self._title(span)}: the file was written to while it was read"]
        return self._compared(span, span.memories(), 0) if span.go_straight else []

    def _look(self, span: ChunkReads, fresh: bool, may_map: bool) -> list[str]:
        """Check a span, and put the reads for new memory (`fresh`), or all others, into place; the problems found."""
        try:
            with self._file_of(span).bytes(int(span.offsets[0]), span.extent, may_map) as (data, missing):
                views = span.views(data)
                problems = self._compared(span, views, missing)
                if not problems:
                    for place in np.flatnonzero(span.fresh == fresh).tolist():
                        span.put(place, views[place])
                return problems
        except OSError as error:
            return [f"{self._title(span)}: cannot be read: {error}"]

    def _file_of(self, span: ChunkReads) -> DataFile | StoreFile:
        return self._open_files[int(span.files[0])]

    def _title(self, span: ChunkReads) -> str:
        return f"file {self.folder.name}/{self.files[span.files[0]].name}, {span.named()}"

    def _compared(self, span: ChunkReads, data: Sequence[memoryview | Memory], missing: int) -> list[str]:
        if missing:
            return [f"{self._title(span)}: {missing} bytes are missing"]
        if not self.has_sums:
            return []
        found = checksums(data)
        problems = []
        for place in np.flatnonzero(found != span.sums).tolist():
            read = span.cut((place, place + 1))
            problems.append(
                f"{self._title(read)}: bytes {read.offsets[0]} to {read.offsets[0] + read.sizes[0]} "
                f"have the checksum {found[place]:016x}, saved was {read.sums[0]:016x}"
            )
        return problems


def check_tied(reader: Reader, wants: Sequence[Want]) -> None:
    """Raise if two names of one tensor that is filled in pieces were saved with different values.

    A tensor that is filled straight is compared by the reader, also where it overlaps another.
    """
    wants = [want for want in wants if not want.fresh]
    if all(want.address for want in wants):
        return
    known: dict[object, Want] = {}
    for want in wants:
        x = want.target
        other = known.setdefault((x.device, x.data_ptr(), x.dtype, x.shape, x.stride(), x.is_conj(), x.is_neg()), want)
        if other is want or (reader.has_sums and want.box == other.box and _have_same_sums(want.stored, other.stored)):
            continue
        first, second = (_read_aside(reader, each) for each in (other, want))
        if not torch.equal(first, second):
            raise _different(other.key, want.key)


def _have_same_sums(first: StoredTensor, second: StoredTensor) -> bool:
    sums = [[(block.box, block.sums) for block in each.blocks] for each in (first, second)]
    return first.code == second.code and first.shape == second.shape and sums[0] == sums[1]


def _read_aside(reader: Reader, want: Want) -> Tensor:
    """The bytes of a wanted tensor, in memory of their own."""
    target = torch.empty(want.target.shape, dtype=want.target.dtype, device="cpu")
    reads = reads_of_all([want._replace(target=target, fresh=True, address=0)])
    with Reader(reader.path, reader.manifest, reads, reader.threads) as aside:
        aside.check()
    return target.reshape(-1).view(torch.uint8)


def _different(first: str, second: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"{first!r} and {second!r} share memory in `into`, and were saved with different values.",
        fix="give each of them memory of its own.",
    )
