"""A worker of a pool: `python -m gridwise.comm.launching.worker`, started by `pool` and for its use only.

The main thread runs one task after another. A second thread listens to the pool, reports the state of the task when asked
(if it may hang), and ends the process when the pool is gone, so that no worker outlives the process that started it.
There is a separate world for each number of workers that a task may use, made on first use and kept. After a task has
failed on any worker, the worlds are freed and recreated, since messages of the failed task may still be in flight.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import cloudpickle

from ...errors import GridwiseError, PartitionError
from ...log import logger
from ..settings import timeout
from ..supervision import original_stderr
from ..supervision.authenticated_listener import connect_authenticated
from ..supervision.guardian import shared_memory_of
from ..supervision.network_addresses import LOOPBACK
from ..supervision.waiting import Waiting
from ..supervision.watch import tick
from ..transports.base import Transport
from . import find
from .packed_calls import packed
from .pool_messages import GONE, Command, Failure, Hello, Overdue, Result, Task, Whereabouts
from .start import FOLDER
from .user_transports import user_transports

CONNECT_SECONDS = 30.0
OWN_THREADS = "gridwise "
"""The prefix of our own threads' names; they are left out of the stacks shown to the user."""


class PoolWorker:
    """The worker's end of a pool."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._inbox: queue.SimpleQueue[Task | Command] = queue.SimpleQueue()
        self._worlds: dict[int, Transport] = {}
        self._leftover_files: list[str] = []
        self._uses_mpi = os.environ["GRIDWISE_TRANSPORT"] == "mpi"

    def tell(self, message: object) -> None:
        with self._sending:
            self._connection.send(message)

    def join(self) -> None:
        """Connect to the other workers, while already listening to the pool."""
        threading.Thread(target=self._listen, name=f"{OWN_THREADS}pool", daemon=True).start()
        if self._uses_mpi:
            from mpi4py import MPI

            self._leftover_files = sorted(shared_memory_of(os.getpid()))
            find.pool_rank = MPI.COMM_WORLD.Get_rank()
        else:
            from torch.distributed import FileStore, init_process_group  # type: ignore[attr-defined]

            from ..transports.torch_distributed import TIMEOUT

            find.pool_rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            # a file that no other user can access: torch's store on a port accepts anyone
            store = FileStore(str(Path(os.environ[FOLDER]) / "store"), size)
            store.set_timeout(TIMEOUT)
            init_process_group("gloo", store=store, rank=find.pool_rank, world_size=size)
        self.tell(Hello(find.pool_rank, self._leftover_files))

    def serve(self) -> None:
        """Run tasks until the pool sends STOP, then exit."""
        while (message := self._inbox.get()) is not Command.STOP:
            if isinstance(message, Task):
                answer = self._run(message)
                original_stderr.flush_all()
                self.tell(answer)
            else:
                self._free_worlds()
        mpi = sys.modules.get("mpi4py.MPI")  # over gloo too, if a task has imported it: MPI leaves its files otherwise
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.Finalize()
        os._exit(0)

    def _listen(self) -> None:
        limit, task = timeout(), 0
        try:
            while True:
                if not self._connection.poll(tick(limit)):
                    waiting = self._waiting()
                    if waiting is not None and time.monotonic() - waiting.since > limit:
                        self.tell(Overdue(task, limit))
                elif (message := self._connection.recv()) is Command.ASK:
                    waiting = self._waiting()
                    self.tell(Whereabouts(task, waiting.described() if waiting else None, stacks(waiting)))
                else:
                    task = message.number if isinstance(message, Task) else task
                    self._inbox.put(message)
        except GONE:
            for path in self._leftover_files:
                Path(path).unlink(missing_ok=True)
            os._exit(1)

    def _run(self, task: Task) -> Result | Failure:
        sys.path.extend(entry for entry in task.path if entry not in sys.path)
        try:
            world = self._world(task.workers)
            find.use(world)
            world.drawn_batches.clear()
            function, args, kwargs = cloudpickle.loads(task.call)
            value = function(*args, **kwargs)
            try:
                return Result(task.number, packed(value), self._counted())
            except Exception as error:
                raise PartitionError(
                    f"the result of {getattr(function, '__name__', function)!s} is a {type(value).__name__}, which "
                    "cannot be pickled.\n  fix: return tensors, numbers, or other things that can."
                ) from error
        except BaseException as error:
            return _failure(task, error)
        finally:
            find.use(None)

    def _open_worlds(self) -> list[Transport]:
        """The worlds provided to tasks, and those that tasks have made themselves."""
        return [*self._worlds.values(), *user_transports]

    def _waiting(self) -> Waiting | None:
        return next((waiting for world in self._open_worlds() if (waiting := world.waiting)), None)

    def _counted(self) -> dict[str, int]:
        return {name: count for world in self._open_worlds() for name, count in world.counted().items()}

    def _free_worlds(self) -> None:
        """Free the worlds, smallest first: all workers of each world do so together, in the same order."""
        while self._worlds:
            world = self._worlds.pop(min(self._worlds))
            try:
                world.abandon()
            except Exception as error:
                logger.debug("%r could not be freed: %r", world, error)

    def _world(self, workers: int) -> Transport:
        if workers not in self._worlds:
            self._worlds[workers] = find.begin(self._new_world(workers))
        return self._worlds[workers]

    def _new_world(self, workers: int) -> Transport:
        if self._uses_mpi:
            from mpi4py import MPI

            from ..transports.mpi import MPITransport

            everyone = MPI.COMM_WORLD.Get_group()
            group = everyone.Incl(list(range(workers)))
            comm = MPI.COMM_WORLD.Create_group(group, tag=workers)
            transport = MPITransport(comm)  # duplicates `comm`
            for made in (comm, group, everyone):
                made.Free()
            return transport
        from ..transports.torch_distributed import TorchTransport

        return TorchTransport(ranks=range(workers))


def _failure(task: Task, error: BaseException) -> Failure:
    # without the first frame, which is that of `_run`
    shown = error.__traceback__.tb_next if error.__traceback__ else None
    stack = "".join(traceback.format_exception(type(error), error, shown))
    try:
        data = packed(error)
        pickle.loads(data)
    except Exception:
        data = None
    return Failure(task.number, "".join(traceback.format_exception_only(error)).strip(), stack, data)


def stacks(waiting: Waiting | None) -> str:
    """What the worker waits for, and the current stacks of the user's threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [f"waits for {waiting.what} with workers {tuple(waiting.team)}" if waiting else "waits for no other worker"]
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, "a thread of a library")
        if not name.startswith(OWN_THREADS):
            frames = traceback.extract_stack(frame)
            ours = [i for i, entry in enumerate(frames) if entry.filename == __file__]
            shown = traceback.format_list(frames[ours[-1] + 1 if ours else 0 :])
            parts.append(f"  {name}:\n" + "".join(shown).rstrip())
    return "\n".join(parts)


def main() -> None:
    """Serve the pool whose address is in `GRIDWISE_POOL`."""
    port, secret = os.environ.pop("GRIDWISE_POOL").split(":")
    connection = Connection(connect_authenticated([LOOPBACK], int(port), secret, CONNECT_SECONDS).detach())
    os.register_at_fork(after_in_child=connection.close)  # else a child would hide this worker's death
    # Python's multiprocessing removes its folder when a process ends by itself, and these are ended: the job's is removed.
    vars(multiprocessing.current_process()).setdefault("_config", {}).setdefault("tempdir", os.environ[FOLDER])
    worker = PoolWorker(connection)
    worker.join()
    worker.serve()


if __name__ == "__main__":
    # imported under its own name, not `__main__`, so that the pool can unpickle its classes
    from gridwise.comm.launching.worker import main as serve

    try:
        serve()
    except GridwiseError as error:
        sys.exit(str(error))
