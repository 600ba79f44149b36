"""Read blocks of stored tensors into memory: check every byte first, then put it into place.

    wants      this worker's boxes of stored tensors, and the memory they go to
    units      the chunks that hold them; those that lie side by side, a span, are read together
    check()    looks at every unit and compares its checksum; nothing of the caller's is changed
    fill()     reads again, straight into place where that is possible; the files must not have changed meanwhile

Checking a large state before changing any of it means passing over it twice. What lies in the system's memory is looked
at there by the first pass, without a copy, and copied by the second. What does not, because there is more of it than
memory, comes from the disk a second time, and is compared a second time. Memory that is new (a deferred parameter, a
result without `into`) is filled by the first pass. One chunk per thread is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path

from ..errors import CheckpointDamaged, describe
from .chunks import checksums, memories
from .disk import MOST_BUFFERS
from .manifest import Manifest
from .openfile import DataFile
from .units import Span, Unit, in_order, put, spans_of, tensors_of

AT_ONCE = 8 << 20
"""Bytes that are read into place in one call."""

MOST_MAPPED = 64
"""Files up to which they are mapped: a mapping holds a second descriptor."""

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
        self.units = in_order(units)
        self.spans = list(spans_of(self.units))
        # Small units are the interpreter's work, of which threads do not get more done.
        self.threads = THREADS if sum(map(itemgetter(2), units)) > len(units) * SMALL else 1
        self._open_files: dict[int, DataFile] = {}
        try:
            firsts = {self.units[start].file: self.units[start] for start, _ in self.spans}
            for first in firsts.values():
                file, may_map = self.files[first.file], len(firsts) <= MOST_MAPPED
                self._open_files[first.file] = DataFile(self.folder / file.name, file, first.key, self.save_id, may_map)
        except BaseException:
            self.close()
            raise

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
        """Compare the checksums of all units; raise `CheckpointDamaged` naming files and tensors."""
        self._run(self._check_span, self.spans, progress, "Nothing was changed.")

    def fill(self, progress: Progress | None = None) -> None:
        """Put the values into place."""
        left = [(start, stop) for start, stop in self.spans if not all(map(_is_done, self.units[start:stop]))]
        spans = self._wider(left)
        tail = "It was whole when it was checked, and has changed since: what was to be filled now holds a mixture."
        self._run(self._fill_span, spans, progress, tail)
        changed = {number for number, file in self._open_files.items() if file.has_changed()}
        if changed:
            again = [(start, stop) for start, stop in spans if self.units[start].file in changed]
            self._run(self._compare_in_place, again, None, tail)

    def _wider(self, spans: Sequence[Span]) -> list[Span]:
        """The spans, neighbours taken together where all their bytes go straight into place: fewer, larger reads."""
        wider: list[Span] = []
        straight = False
        for start, stop in spans:
            goes_on = straight
            straight = all(map(_ADDRESS, self.units[start:stop]))
            if goes_on and straight and self._adjoins(wider[-1], (start, stop)):
                wider[-1] = wider[-1][0], stop
            else:
                wider.append((start, stop))
        return wider

    def _adjoins(self, before: Span, span: Span) -> bool:
        """Whether a span follows another in the same file, and they are not too much together."""
        first, last, following = (self.units[place] for place in (before[0], before[1] - 1, span[0]))
        return (
            before[1] == span[0]
            and (last.file, last.offset + last.size) == (following.file, following.offset)
            and self.units[span[1] - 1].offset - first.offset < AT_ONCE
            and span[1] - before[0] <= MOST_BUFFERS
        )

    def _run(
        self,
        work: Callable[[list[Unit]], list[str]],
        spans: Sequence[Span],
        progress: Progress | None,
        tail: str,
    ) -> None:
        problems: list[str] = []
        next_span = iter(spans)  # shared: whoever is free takes the next one, so the files are read in order

        def take_spans() -> None:
            for start, stop in next_span:
                span = self.units[start:stop]
                problems.extend(work(span))
                if progress is not None:
                    progress(_size_of(span))

        if self.threads == 1 or len(spans) < 4:
            take_spans()
        else:
            with ThreadPoolExecutor(self.threads, "gridwise-read") as pool:
                for done in [pool.submit(take_spans) for _ in range(self.threads)]:
                    done.result()
        if problems:
            shown = sorted(set(problems))
            more = [f"... and {len(shown) - MOST_NAMED} more"] if len(shown) > MOST_NAMED else []
            raise CheckpointDamaged(
                describe(f"the checkpoint {self.path} is damaged. {tail}", [*shown[:MOST_NAMED], *more])
            )

    def _check_span(self, span: list[Unit]) -> list[str]:
        if all(unit.fresh and unit.address for unit in span):
            return self._read_into_place(span, trusted=False)
        return self._look(span, fresh=True, may_map=not any(unit.fresh for unit in span))

    def _fill_span(self, span: list[Unit]) -> list[str]:
        if all(map(_ADDRESS, span)):
            return self._read_into_place(span, trusted=True)
        return self._look(span, fresh=False, may_map=False)

    def _read_into_place(self, span: list[Unit], trusted: bool) -> list[str]:
        """Read a span to where its units belong; what is wrong, if anything.

        Not compared again (`trusted`) are bytes that were checked before, if the system still holds them in memory.
        """
        places = memories(list(map(_ADDRESS, span)), list(map(_SIZE, span)))
        file, first = self._open_files[span[0].file], span[0].offset
        if trusted and file.read_from_memory(first, places):
            return []
        try:
            missing = file.read(first, places)
        except OSError as error:
            return [f"{self._says(span)}: cannot be read: {error}"]
        return self._compared(span, checksums(places), missing)

    def _compare_in_place(self, span: list[Unit]) -> list[str]:
        """Compare what a span has put into place; what went through a buffer was compared there."""
        if not all(map(_ADDRESS, span)):
            return []
        return self._compared(span, checksums(memories(list(map(_ADDRESS, span)), list(map(_SIZE, span)))), 0)

    def _look(self, span: list[Unit], fresh: bool, may_map: bool) -> list[str]:
        """Look at a span and put into place what goes to new memory (`fresh`), or what does not; what is wrong, if anything."""
        first = span[0].offset
        try:
            with self._open_files[span[0].file].bytes(first, _size_of(span), may_map) as (data, missing):
                views = [data[unit[1] - first : unit[1] - first + unit[2]] for unit in span]
                problems = self._compared(span, checksums(views), missing)
                if not problems:
                    for unit, view in zip(span, views, strict=True):
                        if unit.fresh is fresh:
                            put(unit, view)
                return problems
        except OSError as error:
            return [f"{self._says(span)}: cannot be read: {error}"]

    def _says(self, span: list[Unit]) -> str:
        return f"file {self.folder.name}/{self.files[span[0].file].name}, {tensors_of(span)}"

    def _compared(self, span: list[Unit], found: list[str], missing: int) -> list[str]:
        if missing:
            return [f"{self._says(span)}: {missing} bytes are missing"]
        if found == list(map(_SUM, span)):
            return []
        return [
            f"{self._says([unit])}: bytes {unit.offset} to {unit.offset + unit.size} "
            f"have the checksum {sum_of_it}, saved was {unit.sum}"
            for unit, sum_of_it in zip(span, found, strict=True)
            if sum_of_it != unit.sum
        ]


_SIZE, _SUM, _ADDRESS = itemgetter(2), itemgetter(3), itemgetter(5)


def _size_of(span: list[Unit]) -> int:
    return span[-1].offset + span[-1].size - span[0].offset


def _is_done(unit: Unit) -> bool:
    """Whether a unit has nothing left to do when it is checked: it went to new memory then, or goes nowhere."""
    return unit.fresh or (not unit.address and unit.scatter is None)
