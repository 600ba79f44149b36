"""One task in progress in a pool: the answers so far, and which error caused the others."""

from __future__ import annotations

import contextlib
import math
import pickle
import selectors
import subprocess
import time
from multiprocessing.connection import Connection
from typing import Any

from ...errors import CommTimeout, FaultError, WorkerDied, WorkerFailed, describe
from ..supervision.finished_workers import FinishedWorkers, deserted
from .pool_messages import GONE, Command, Failure, Overdue, Result, Task, Whereabouts
from .start import StartedProcesses, spelt_exit

GRACE_SECONDS = 3.0
"""After a failure, how long the other workers have to finish or fail too; one that still waits then would wait for ever."""
ASK_SECONDS = 1.0
"""Once a worker has finished, how often the others are asked what they wait for."""
STACK_SECONDS = 3.0
"""How long a worker that hangs may take to report its stacks."""


class Settled(Exception):
    """The task failed, but every worker has answered: the pool remains usable."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class PoolTask:
    """A task given to the first workers of a pool, and their answers."""

    def __init__(
        self, task: Task, connections: list[Connection], started: StartedProcesses, timeout: float | None
    ) -> None:
        self._task = task
        self._connections = connections
        self._started = started
        self._limit = f"{timeout:g} s" if timeout is not None else ""
        self._end = math.inf if timeout is None else time.monotonic() + timeout
        self._values: dict[int, Any] = {}
        self._errors: dict[int, BaseException] = {}  # in order of arrival
        self._stacks: dict[int, str] = {}
        self._finished = FinishedWorkers()
        self._deserted: WorkerDied | None = None

    def results(self) -> list[Any]:
        """Every worker's result, in order. Raises `Settled` if the pool remains usable, another error if it does not."""
        self._tell(list(range(self._task.workers)), self._task)
        with selectors.DefaultSelector() as selector:
            for rank, connection in enumerate(self._connections):
                selector.register(connection, selectors.EVENT_READ, rank)
            while self._missing():
                if self._hear(selector, min(self._end, time.monotonic() + ASK_SECONDS if self._values else math.inf)):
                    continue
                if time.monotonic() >= self._end:
                    raise self._cause() or self._given_up(selector)
                self._tell(self._missing(), Command.ASK)
        cause = self._cause()
        if cause is not None:
            raise Settled(cause)
        return [self._values[rank] for rank in range(self._task.workers)]

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._task.workers) if rank not in self._values and rank not in self._errors]

    def _tell(self, ranks: list[int], message: object) -> None:
        for rank in ranks:
            with contextlib.suppress(*GONE):  # `_hear` reports the death
                self._connections[rank].send(message)

    def _hear(self, selector: selectors.BaseSelector, until: float) -> bool:
        """Process messages from the workers; False if none arrived before `until`."""
        events = selector.select(max(0.0, until - time.monotonic()) if until < math.inf else None)
        for key, _ in events:
            try:
                message = self._connections[key.data].recv()
            except GONE:
                # epoll and kqueue report in order of arrival: the first connection to close is that of the first death
                raise self._cause(consequences=False) or self._death(key.data) from None
            self._take(key.data, message)
        return bool(events)

    def _take(self, rank: int, message: Result | Failure | Whereabouts | Overdue) -> None:
        if message.task != self._task.number:
            return
        if isinstance(message, Result):
            self._values[rank] = pickle.loads(message.value)
            self._finished.add(rank, message.counts)
        elif isinstance(message, Failure):
            if not self._errors:
                self._end = min(self._end, time.monotonic() + GRACE_SECONDS)
            self._errors[rank] = self._restored(rank, message)
        elif isinstance(message, Whereabouts):
            self._stacks[rank], wait = message.stacks, message.wait
            by = self._finished.awaited(wait) if wait is not None and rank in self._missing() else None
            if wait is not None and by is not None and self._deserted is None:
                self._deserted = WorkerDied(deserted(by, self._task.workers, rank, wait), (by,))
                self._end = 0.0
        elif rank in self._missing():
            self._limit = f"`GRIDWISE_TIMEOUT` (={message.limit:g}) s of waiting"
            self._end = 0.0

    # Errors

    def _restored(self, rank: int, failure: Failure) -> BaseException:
        who = f"worker {rank} of {self._task.workers}"
        error: BaseException | None = None
        if failure.exception is not None:
            with contextlib.suppress(Exception):
                error = pickle.loads(failure.exception)
        if error is None:
            return WorkerFailed(f"{who} failed: {failure.summary}\n\n{failure.stack}")
        error.add_note(f"\nraised on {who}:\n\n{failure.stack}")
        return error

    def _cause(self, consequences: bool = True) -> BaseException | None:
        """The first error; one that merely reports the end of another worker counts only if there is no other."""
        errors = list(self._errors.values())
        causes = [error for error in errors if type(error) not in (WorkerDied, FaultError)]
        found = causes or (errors if consequences else [])
        return found[0] if found else None

    def _death(self, rank: int) -> WorkerDied:
        how = "its process is gone"
        if self._started.direct:
            with contextlib.suppress(subprocess.TimeoutExpired):
                how = spelt_exit(self._started.processes[rank].wait(1.0))
        return WorkerDied(f"worker {rank} of {len(self._connections)} died ({how}) during a task.", (rank,))

    def _given_up(self, selector: selectors.BaseSelector) -> FaultError:
        """The error for a task that does not finish, with what every worker is doing."""
        stuck, deserted, limit = self._missing(), self._deserted, self._limit
        self._stacks.clear()
        self._tell(stuck, Command.ASK)
        end = time.monotonic() + STACK_SECONDS
        while len(self._stacks) < len(stuck) and self._hear(selector, end):
            pass
        done = [f"worker {rank} has finished" for rank in self._values]
        text = [f"worker {rank} {self._stacks.get(rank, 'does not answer')}" for rank in stuck]
        if deserted is not None:
            deserted.add_note(describe("", [*done, *text]))
            return deserted
        return CommTimeout(f"a task of {self._task.workers} workers was not done after {limit}.", [*done, *text])
