"""A pool: worker processes that are started once and run many tasks.

    with Pool(4) as pool:
        ranks = pool.run(lambda: gridwise.world().rank)             # [0, 1, 2, 3]
        sums = pool.run(train, model, batch, workers=2, timeout=60)  # on the first two, in a world of two

The pool holds one connection to each worker; a closed connection means that the worker is dead. The user gets the error
that is the cause, not a consequence: a death or an exception takes precedence over the errors that follow from it on other
workers. After a fault that leaves a worker dead or stuck, all workers are killed, and the next `run` starts new ones.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from ...errors import PartitionError, TransportError
from ...log import logger
from .. import settings
from ..supervision.authenticated_listener import AuthenticatedListener, new_secret
from ..supervision.network_addresses import LOOPBACK
from .packed_calls import count_of, packed_call
from .pool_messages import GONE, Command, Hello, Task
from .pool_task import PoolTask, Settled
from .start import StartedProcesses, choose, environment_for, start

START_SECONDS = 120.0
STOP_SECONDS = 5.0
FAILURES = 50
"""How many tasks may fail over MPI before the workers are restarted: the communicators of a failed world are never freed
(`MPITransport.abandon`), and a process has about two thousand."""


class Pool:
    """Workers on this machine that run functions together.

    Parameters
    ----------
    workers : the number of processes.
    transport : 'mpi', 'gloo', or 'auto', which is MPI if it works here and every worker has a core, else gloo.
    env : environment variables for the workers, in addition to this process's own.
    """

    def __init__(self, workers: int, transport: str = "auto", env: Mapping[str, str] | None = None) -> None:
        self.workers = count_of(workers)
        self.transport = choose(transport, self.workers)
        self._env = dict(env or {})
        self._connections: list[Connection] = []
        self._started: StartedProcesses | None = None
        self._finalizer: Callable[[], Any] | None = None
        self._task = 0
        self._failures = 0
        self._busy = threading.Lock()

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        workers: int | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on the first `workers` workers, by default all of them, and return their results.

        Inside `fn`, `gridwise.world()` has that many workers. Raises what a worker raised, with its name and traceback
        as a note; `WorkerDied` if a worker's process is gone; `CommTimeout` with every worker's stack after `timeout`
        seconds.
        """
        count = self.workers if workers is None else count_of(workers)
        if count > self.workers:
            raise PartitionError(f"`workers` (={count}) must be from 1 to {self.workers}, the size of this pool.")
        call = packed_call(fn, args, kwargs)
        with self._busy:
            try:
                self._started = self._running()
                self._task += 1
                task = Task(self._task, count, list(sys.path), call)
                return PoolTask(task, self._connections, self._started, timeout).results()
            except Settled as settled:
                self._renew()
                raise settled.error from None
            except BaseException:
                self.kill()
                raise

    # Life and death

    def _running(self) -> StartedProcesses:
        if self._started is not None and self._started.ended() is None:
            return self._started
        self.kill()
        environment = environment_for(self.workers, self.transport, self._env)
        settings.check(environment)  # raise here rather than in a worker
        secret = new_secret()
        listener = AuthenticatedListener([socket.create_server((LOOPBACK, 0), backlog=1024)], secret)
        try:
            environment["GRIDWISE_POOL"] = f"{listener.port}:{secret}"
            command = [sys.executable, "-m", "gridwise.comm.launching.worker"]
            started = start(self.workers, self.transport, command, environment)
            self._finalizer = weakref.finalize(self, started.kill)
            self._connections = self._greet(listener, started)
        finally:
            listener.close()
        logger.debug("pool of %d workers started over %s", self.workers, self.transport)
        return started

    def _greet(self, listener: AuthenticatedListener, started: StartedProcesses) -> list[Connection]:
        """The connections to all workers, once each has sent its `Hello`; other callers do not delay them."""
        connections: dict[int, Connection] = {}
        deadline = time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while len(connections) < self.workers:
                for key, _ in selector.select(timeout=0.2):
                    if key.fileobj is not listener:
                        assert isinstance(key.fileobj, Connection)
                        selector.unregister(key.fileobj)
                        with contextlib.suppress(*GONE):  # its process has ended, as `_check_starting` will find
                            hello: Hello = key.fileobj.recv()
                            connections[hello.rank] = key.fileobj
                            started.leftover_files.update(hello.leftover_files)
                for connection in listener.admitted():
                    selector.register(Connection(connection.detach()), selectors.EVENT_READ)
                if len(connections) < self.workers:
                    self._check_starting(started, len(connections), deadline)
        return [connections[rank] for rank in range(self.workers)]

    def _check_starting(self, started: StartedProcesses, arrived: int, deadline: float) -> None:
        ended = started.ended()
        if ended is None and time.monotonic() < deadline:
            return
        why = ended or f"only {arrived} were there after {START_SECONDS:.0f} s"
        raise TransportError(
            f"{self.workers} workers over {self.transport} could not be started: {why}.",
            fix="what they printed above tells more; `gridwise doctor` tries each transport by itself.",
        )

    def close(self) -> None:
        """Shut the workers down in an orderly way. The next `run` starts new ones."""
        self._tell_all(Command.STOP)
        if self._connections and self._started is not None:
            self._started.wait(STOP_SECONDS)
        self.kill()

    def _renew(self) -> None:
        """Have the workers, all idle now, free the worlds of a failed task together."""
        self._failures += 1
        if self.transport == "mpi" and self._failures == FAILURES:
            self.close()
        else:
            self._tell_all(Command.RENEW)

    def _tell_all(self, command: Command) -> None:
        for connection in self._connections:
            with contextlib.suppress(*GONE):
                connection.send(command)

    def kill(self) -> None:
        """Kill the workers."""
        if self._finalizer is not None:
            self._finalizer()
        for connection in self._connections:
            connection.close()
        self._connections, self._started, self._finalizer, self._failures = [], None, None, 0

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
        return (
            f"<pool of {self.workers} workers over {self.transport}, {'started' if self._started else 'not started'}>"
        )
