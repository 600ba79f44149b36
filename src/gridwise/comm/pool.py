"""A pool: worker processes that are started once and run tasks again and again.

    with Pool(4) as pool:
        ranks = pool.run(lambda: gridwise.world().rank)             # [0, 1, 2, 3]
        sums = pool.run(train, model, batch, workers=2, timeout=60)  # on the first two, in a world of two

The pool holds one line to each worker. A closed line is a dead worker. The error that a user gets is the cause, not its
consequences: a death or an exception comes before what the survivors made of it. After a fault that leaves a worker
dead or stuck all workers are ended, and the next `run` starts fresh ones.
"""

from __future__ import annotations

import contextlib
import pickle
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import cloudpickle

from ..errors import CommTimeout, FaultError, PartitionError, TransportError, WorkerDied, WorkerFailed, describe
from ..log import logger
from .line import Exchange, Line, LineClosed
from .messages import AskStacks, Failure, Hello, Result, Stacks, Stop, Task, Verdict, Welcome
from .start import Crew, choose, environment_for, spelt_exit, start

START_SECONDS = 120.0
GRACE_SECONDS = 3.0
"""After a failure the others get this long to finish or fail too; whoever still waits then would wait for ever."""
STACK_SECONDS = 3.0
STOP_SECONDS = 5.0


class Pool:
    """Workers on this machine that run functions together.

    Parameters
    ----------
    workers : how many processes.
    transport : how they talk: 'mpi', 'gloo', or 'auto', which is MPI if it works here and every worker has a core.
    env : environment variables for the workers, on top of this process's own.
    """

    def __init__(self, workers: int, transport: str = "auto", env: Mapping[str, str] | None = None) -> None:
        if workers < 1:
            raise PartitionError(f"`workers` (={workers}) must be 1 or more.")
        self.workers = workers
        self.transport = choose(transport, workers)
        self._env = dict(env or {})
        self._lines: list[Line] = []
        self._crew: Crew | None = None
        self._finalizer: Callable[[], Any] | None = None
        self._task = 0
        self._era = 0
        self._busy = threading.Lock()

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        workers: int | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on the first `workers` workers, all of them by default; return their results.

        Inside, `gridwise.world()` has that many workers. Raises what a worker raised, with its name and traceback as
        a note; `WorkerDied` if a worker's process is gone; `CommTimeout` with every worker's stack after `timeout`
        seconds.
        """
        count = self.workers if workers is None else workers
        if not 1 <= count <= self.workers:
            raise PartitionError(f"`workers` (={count}) must be from 1 to {self.workers}, the size of this pool.")
        call = cloudpickle.dumps((fn, args, kwargs))
        with self._busy:
            try:
                self._start()
                self._task += 1
                return _Round(self, Task(self._task, count, self._era, list(sys.path), call), timeout).results()
            except _Settled as settled:
                self._era += 1
                raise settled.error from None
            except BaseException:
                self.kill()
                raise

    # Life and death

    def _start(self) -> None:
        if self._crew is not None and self._crew.ended() is None:
            return
        self.kill()
        exchange = Exchange()
        environment = environment_for(self.workers, self.transport, self._env)
        environment["GRIDWISE_POOL"] = f"{exchange.port}:{exchange.token}"
        command = [sys.executable, "-m", "gridwise.comm.worker"]
        self._crew = start(self.workers, self.transport, command, environment)
        self._finalizer = weakref.finalize(self, self._crew.kill)
        try:
            self._lines = self._greet(exchange, self._crew)
        finally:
            exchange.close()
        logger.debug("pool of %d workers started over %s", self.workers, self.transport)

    def _greet(self, exchange: Exchange, crew: Crew) -> list[Line]:
        lines: dict[int, Line] = {}
        store_port = 0
        deadline = time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(exchange, selectors.EVENT_READ)
            while len(lines) < self.workers:
                for key, _ in selector.select(timeout=0.2):
                    if key.fileobj is exchange:
                        if (caller := exchange.accept()) is not None:
                            selector.register(caller, selectors.EVENT_READ)
                        continue
                    line = key.fileobj
                    assert isinstance(line, Line)
                    selector.unregister(line)
                    with contextlib.suppress(LineClosed):
                        hello: Hello = pickle.loads(line.receive())
                        lines[hello.rank] = line
                        crew.pids.append(hello.pid)
                        crew.litter.update(hello.litter)
                        store_port |= hello.store_port
                if len(lines) < self.workers:
                    self._check_starting(crew, len(lines), deadline)
        ordered = [lines[rank] for rank in range(self.workers)]
        for line in ordered:
            line.send(pickle.dumps(Welcome(store_port)))
        return ordered

    def _check_starting(self, crew: Crew, arrived: int, deadline: float) -> None:
        ended = crew.ended()
        if ended is None and time.monotonic() < deadline:
            return
        why = ended or f"only {arrived} were there after {START_SECONDS:.0f} s"
        raise TransportError(
            describe(
                f"{self.workers} workers over {self.transport} could not be started: {why}.",
                fix="what they printed above tells more; `gridwise doctor` tries each transport by itself.",
            )
        )

    def close(self) -> None:
        """End the workers in good order. The next `run` starts new ones."""
        for line in self._lines:
            with contextlib.suppress(LineClosed):
                line.send(pickle.dumps(Stop()))
        if self._lines and self._crew is not None:
            self._crew.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the workers now."""
        if self._finalizer is not None:
            self._finalizer()
        for line in self._lines:
            line.close()
        self._lines, self._crew, self._finalizer = [], None, None

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

    def __repr__(self) -> str:
        return f"<pool of {self.workers} workers over {self.transport}, {'started' if self._crew else 'not started'}>"


class _Settled(Exception):
    """A task failed, but every worker has answered: the pool can go on."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Round:
    """One task on its way: what has come back so far."""

    def __init__(self, pool: Pool, task: Task, timeout: float | None) -> None:
        assert pool._crew is not None
        self.task = task
        self.lines = pool._lines
        self.crew = pool._crew
        self.timeout = timeout
        self.values: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}  # in order of arrival
        self.stacks: dict[int, str] = {}
        self.fatal: BaseException | None = None

    def results(self) -> list[Any]:
        for rank in range(self.task.workers):
            with contextlib.suppress(LineClosed):  # a death is found below
                self.lines[rank].send(pickle.dumps(self.task))
        end = None if self.timeout is None else time.monotonic() + self.timeout
        with selectors.DefaultSelector() as selector:
            for rank, line in enumerate(self.lines):
                selector.register(line, selectors.EVENT_READ, rank)
            while self.missing and self.fatal is None:
                before = len(self.errors)
                if not self._hear(selector, end):
                    if self.errors:
                        raise self._cause()
                    raise self._timed_out(selector)
                if self.errors and not before:
                    grace = time.monotonic() + GRACE_SECONDS
                    end = grace if end is None else min(end, grace)
        if self.fatal is not None:
            raise self.fatal
        if self.errors:
            raise _Settled(self._cause())
        return [self.values[rank] for rank in range(self.task.workers)]

    @property
    def missing(self) -> list[int]:
        return [rank for rank in range(self.task.workers) if rank not in self.values and rank not in self.errors]

    def _hear(self, selector: selectors.BaseSelector, end: float | None) -> bool:
        """Take in what the workers say; False when nothing came until `end`."""
        events = selector.select(None if end is None else max(0.0, end - time.monotonic()))
        gone = []
        for key, _ in events:
            try:
                self._take(key.data, pickle.loads(self.lines[key.data].receive()))
            except LineClosed:
                gone.append(key.data)
        if gone and self.fatal is None:
            self.fatal = self._death(gone)
        return bool(events)

    def _take(self, rank: int, message: object) -> None:
        if isinstance(message, Result) and message.task == self.task.number:
            self.values[rank] = pickle.loads(message.value)
        elif isinstance(message, Failure) and message.task == self.task.number:
            self.errors[rank] = self._restored(rank, message)
        elif isinstance(message, Stacks):
            self.stacks[rank] = message.text
        elif isinstance(message, Verdict):
            self.fatal = pickle.loads(message.error)

    def _restored(self, rank: int, failure: Failure) -> BaseException:
        who = f"worker {rank} of {self.task.workers}"
        error: BaseException | None = None
        if failure.exception is not None:
            with contextlib.suppress(Exception):
                error = pickle.loads(failure.exception)
        if error is None:
            return WorkerFailed(f"{who} failed: {failure.summary}\n\n{failure.stack}")
        error.add_note(f"\nraised on {who}:\n\n{failure.stack}")
        return error

    def _cause(self) -> BaseException:
        """The error that came first, unless it is only what a worker made of another one's."""
        consequences = [error for error in self.errors.values() if type(error) in (WorkerDied, FaultError)]
        causes = [error for error in self.errors.values() if error not in consequences]
        return (causes or consequences)[0]

    def _death(self, ranks: list[int]) -> BaseException:
        causes = [error for error in self.errors.values() if type(error) not in (WorkerDied, FaultError)]
        if causes:
            return causes[0]
        names = ", ".join(f"worker {rank}" for rank in ranks)
        return WorkerDied(
            f"{names} of {self.task.workers} died{self._how(ranks[0])} while it ran a task.", tuple(ranks)
        )

    def _how(self, rank: int) -> str:
        if len(self.crew.processes) <= rank:
            return " (its process is gone)"
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f" ({spelt_exit(self.crew.processes[rank].wait(1.0))})"
        return ""

    def _timed_out(self, selector: selectors.BaseSelector) -> CommTimeout:
        stuck = self.missing
        for rank in stuck:
            with contextlib.suppress(LineClosed):
                self.lines[rank].send(pickle.dumps(AskStacks()))
        end = time.monotonic() + STACK_SECONDS
        while len(self.stacks) < len(stuck) and self.fatal is None and self._hear(selector, end):
            pass
        done = [f"worker {rank} has finished" for rank in self.values]
        text = [f"worker {rank} {self.stacks.get(rank, 'does not answer')}" for rank in stuck]
        return CommTimeout(
            describe(f"a task of {self.task.workers} workers was not done after {self.timeout:g} s.", [*done, *text])
        )
