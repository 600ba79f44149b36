"""Read batches before they are asked for: in threads of this worker, or in processes that these threads start.

Threads cost nothing and share open files; libraries that release the GIL to decompress run alongside training.
Processes are for sources and transforms written in Python.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from ..comm.launching.packed_calls import packed
from ..errors import DataError
from .reader import Batch, ReadRequest, SampleReader, tried
from .reading_process import ReadingProcess

BatchSpan = tuple[int, int]
"""The places of a batch in the order of its epoch: of its first sample, and of the one after its last."""


class Prefetch:
    """Reads requests in the background, at most `ahead` of them before they are needed; if 0, when they are needed."""

    def __init__(self, reader: SampleReader, ahead: int, workers: int, processes: bool) -> None:
        self.reader, self.ahead, self.workers = reader, ahead, workers
        self._executor: ThreadPoolExecutor | None = None
        self._sent = _packed(reader) if processes and ahead else b""
        self._idle: deque[ReadingProcess] = deque()

    def answers(
        self, requests: Iterator[tuple[ReadRequest, BatchSpan]]
    ) -> Iterator[tuple[ReadRequest, BatchSpan, Batch]]:
        """The batch for each request, in order, or the error that prevented it."""
        if not self.ahead:
            yield from ((request, about, tried(self.reader, request)) for request, about in requests)
            return
        under_way = deque((*asked, self._submit(asked[0])) for asked in islice(requests, self.ahead))
        try:
            while under_way:
                request, about, future = under_way.popleft()
                found = future.result()
                under_way.extend((*asked, self._submit(asked[0])) for asked in islice(requests, 1))
                yield request, about, found
        finally:
            for _, _, future in under_way:
                future.cancel()

    def _submit(self, request: ReadRequest) -> Future[Batch]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.workers, thread_name_prefix="gridwise data")
        return self._executor.submit(self._read, request)

    def _read(self, request: ReadRequest) -> Batch:
        if not self._sent:
            return tried(self.reader, request)
        try:
            process = self._idle.pop()
        except IndexError:
            try:
                process = ReadingProcess(self._sent)
            except OSError as error:
                return DataError(f"a process that reads ahead cannot be started: {error}")
        try:
            found = process.read(request)
        except (EOFError, OSError):
            return DataError(f"a process that reads ahead has died: it ended with {process.end()}.")
        self._idle.append(process)
        return found

    def close(self) -> None:
        """End threads and processes, after waiting for reads in progress."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None
        while self._idle:
            self._idle.pop().end()


def _packed(reader: SampleReader) -> bytes:
    """A reader with its transforms, pickled for a process that this worker starts itself."""
    try:
        return packed(reader)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"the samples or transforms cannot be sent to a process that reads ahead: {error}",
            fix="give paths instead of open files, or read ahead in threads: BlockLoader(..., processes=False).",
        ) from error
