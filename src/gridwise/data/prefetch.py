"""Batches are read before they are asked for: by threads of this worker, or by processes that it spawns.

Threads cost nothing and share what is open; libraries that decompress outside of Python's lock run beside the training.
Processes are for sources and transforms that are Python themselves. They are no workers: of the launcher's variables, which
would make them believe so, they see none.
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
from multiprocessing.connection import wait
from typing import Any

import cloudpickle
import torch.multiprocessing
from torch import Tensor

from ..comm.launching.start import clean
from ..errors import DataError, describe
from .reader import Reader, Request

Batch = list[Tensor] | Exception


class Prefetch:
    """Reads what is asked for, in the order of asking, in the background; or at once, if `workers` is 0."""

    def __init__(self, reader: Reader, workers: int, processes: bool) -> None:
        self.reader, self.workers, self.processes = reader, workers, processes
        self._executor: Executor | None = None
        self._sent = b""
        if processes:
            self._sent = _packed(reader)

    def submit(self, request: Request) -> Future[Batch]:
        if self._executor is None and self.workers:
            self._start()
        if self._executor is None:
            done: Future[Batch] = Future()
            done.set_result(_tried(self.reader, request))
            return done
        if not self.processes:
            return self._executor.submit(_tried, self.reader, request)
        with _without_launcher():  # the first call spawns them
            return self._executor.submit(_tried_there, request)

    def result(self, future: Future[Batch]) -> Batch:
        """What was read, or why it could not be."""
        try:
            return future.result()
        except Exception as error:  # a process that has died, or an answer that could not be sent
            self.close()
            return DataError(
                describe(
                    f"a process that reads ahead has failed: {type(error).__name__}: {error}",
                    fix="let what the script does stand under `if __name__ == '__main__':`, because such a process imports it.",
                )
            )

    def _start(self) -> None:
        if not self.processes:
            self._executor = ThreadPoolExecutor(self.workers, thread_name_prefix="gridwise data")
            return
        spawn = torch.multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(self.workers, spawn, _begin, (self._sent, list(sys.path)))

    def close(self) -> None:
        """End threads and processes; what is under way is waited for."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None


class Window:
    """Answers to requests, in their order, with at most `ahead` of them under way."""

    def __init__(self, prefetch: Prefetch, requests: Iterator[tuple[Request, Any]], ahead: int) -> None:
        self._prefetch, self._requests, self._ahead = prefetch, requests, ahead
        self._under_way: deque[tuple[Request, Any, Future[Batch]]] = deque()

    def __iter__(self) -> Iterator[tuple[Request, Any, Batch]]:
        try:
            while True:
                self._fill(max(1, self._ahead))
                if not self._under_way:
                    return
                request, about, future = self._under_way.popleft()
                found = self._prefetch.result(future)
                self._fill(self._ahead)
                yield request, about, found
        finally:
            for _, _, future in self._under_way:
                future.cancel()

    def _fill(self, count: int) -> None:
        while len(self._under_way) < count:
            item = next(self._requests, None)
            if item is None:
                return
            request, about = item
            self._under_way.append((request, about, self._prefetch.submit(request)))


def _tried(reader: Reader, request: Request) -> Batch:
    try:
        return reader.read(request)
    except Exception as error:
        return error


_reader: Reader | None = None
"""Of a process that reads ahead."""


def _begin(packed: bytes, path: list[str]) -> None:
    """Be a process that reads ahead, and end with the worker that has spawned it."""
    global _reader
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    sys.path[:] = path
    torch.set_num_threads(1)
    _reader = pickle.loads(packed)


def _tried_there(request: Request) -> Batch:
    assert _reader is not None
    found = _tried(_reader, request)
    return DataError(str(found)) if isinstance(found, Exception) else found


def _packed(reader: Reader) -> bytes:
    """A reader with its transforms, for a process that this worker spawns itself."""
    try:
        return cloudpickle.dumps(reader)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            describe(
                f"the samples or transforms cannot be sent to a process that reads ahead: {error}",
                fix="give paths instead of open files, or read ahead in threads: BlockLoader(..., processes=False).",
            )
        ) from error


@contextmanager
def _without_launcher() -> Iterator[None]:
    """Let processes that are spawned in the body not take themselves for workers."""
    before = dict(os.environ)
    hidden = {name: before[name] for name in before.keys() - clean(before).keys()}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
