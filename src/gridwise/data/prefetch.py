"""Read batches before they are asked for: in threads of this worker, or in processes that it spawns.

Threads cost nothing and share open files; libraries that release the GIL to decompress run alongside training.
Processes are for sources and transforms written in Python. They are not workers: the launcher's environment variables,
which would make them believe they are, are hidden from them.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import wait

import cloudpickle
import torch.multiprocessing
from torch import Tensor

from ..comm.launching.start import clean
from ..errors import DataError
from .reader import ReadRequest, SampleReader

Batch = list[Tensor] | Exception
BatchSpan = tuple[int, int]
"""The places of a batch in the order of its epoch: of its first sample, and of the one after its last."""


class Prefetch:
    """Reads requests in the background, at most `ahead` of them before they are needed; if 0, when they are needed."""

    def __init__(self, reader: SampleReader, ahead: int, workers: int, processes: bool) -> None:
        self.reader, self.ahead, self.workers, self.processes = reader, ahead, workers, processes
        self._executor: Executor | None = None
        self._sent = _packed(reader) if processes and ahead else b""

    def answers(
        self, requests: Iterator[tuple[ReadRequest, BatchSpan]]
    ) -> Iterator[tuple[ReadRequest, BatchSpan, Batch]]:
        """The batch for each request, in order, or the error that prevented it."""
        if not self.ahead:
            yield from ((request, about, _tried(self.reader, request)) for request, about in requests)
            return
        under_way = deque((*asked, self._submit(asked[0])) for asked in islice(requests, self.ahead))
        try:
            while under_way:
                request, about, future = under_way.popleft()
                found = self._result(future)
                under_way.extend((*asked, self._submit(asked[0])) for asked in islice(requests, 1))
                yield request, about, found
        finally:
            for _, _, future in under_way:
                future.cancel()

    def _submit(self, request: ReadRequest) -> Future[Batch]:
        if self._executor is None:
            self._executor = self._started()
        if not self.processes:
            return self._executor.submit(_tried, self.reader, request)
        with _without_launcher():  # the first call spawns them
            return self._executor.submit(_tried_there, request)

    def _result(self, future: Future[Batch]) -> Batch:
        try:
            return future.result()
        except Exception as error:  # a process that has died, or an answer that could not be sent
            self.close()
            text = f"that reads ahead has failed: {type(error).__name__}: {error}"
            if not self.processes:
                return DataError(f"a thread {text}")
            fix = "put what the script does under `if __name__ == '__main__':`, because such a process imports it."
            return DataError(f"a process {text}", fix=fix)

    def _started(self) -> Executor:
        if not self.processes:
            return ThreadPoolExecutor(self.workers, thread_name_prefix="gridwise data")
        spawn = torch.multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.workers, spawn, _begin, (self._sent, list(sys.path)))

    def close(self) -> None:
        """End threads and processes, after waiting for reads in progress."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None


def _tried(reader: SampleReader, request: ReadRequest) -> Batch:
    try:
        return reader.read(request)
    except Exception as error:
        return error


_reader: SampleReader | None = None
"""The reader of a process that reads ahead; None in a worker."""


def _begin(packed: bytes, path: list[str]) -> None:
    """Set up a process that reads ahead, and that ends with the worker that spawned it."""
    global _reader
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    sys.path[:] = path
    torch.set_num_threads(1)
    _reader = pickle.loads(packed)


def _tried_there(request: ReadRequest) -> Batch:
    assert _reader is not None
    found = _tried(_reader, request)
    return DataError(str(found)) if isinstance(found, Exception) else found


def _packed(reader: SampleReader) -> bytes:
    """A reader with its transforms, pickled for a process that this worker spawns itself."""
    try:
        return cloudpickle.dumps(reader)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"the samples or transforms cannot be sent to a process that reads ahead: {error}",
            fix="give paths instead of open files, or read ahead in threads: BlockLoader(..., processes=False).",
        ) from error


@contextmanager
def _without_launcher() -> Iterator[None]:
    """Hide the launcher's variables in the body, so that processes spawned there do not take themselves for workers."""
    before = dict(os.environ)
    hidden = {name: before[name] for name in before.keys() - clean(before).keys()}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
