"""A communicator for the workers of a partition, which DistDL's users find at `P._comm`.

The most common calls work on any transport. On MPI, everything else that mpi4py's communicators have works too: all
workers of the partition together create a real one at the first such call.
"""

from __future__ import annotations

import functools
import operator
import pickle
from collections.abc import Callable
from typing import Any

from gridwise.comm.agreement import check_same_call
from gridwise.errors import UnsupportedError
from gridwise.partition import Partition


class Communicator:
    """Communication among the workers of `partition`, in its order."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._real: Any = None

    rank = property(lambda self: self._partition.rank)
    size = property(lambda self: self._partition.size)

    def Get_rank(self) -> int:
        return self._partition.rank

    def Get_size(self) -> int:
        return self._partition.size

    def Barrier(self) -> None:
        self._partition.barrier()

    barrier = Barrier

    def allgather(self, sendobj: object) -> list[Any]:
        """The objects of all workers, in the order of the partition."""
        P = self._partition
        check_same_call(P.transport, P.team, "allgather", "a communicator")
        parts = dict(zip(P.team, P.transport.gather_bytes(pickle.dumps(sendobj), P.team, "allgather"), strict=True))
        return [pickle.loads(parts[rank]) for rank in P.ranks]

    def gather(self, sendobj: object, root: int = 0) -> list[Any] | None:
        everyone = self.allgather(sendobj)
        return everyone if self.rank == root else None

    def bcast(self, obj: object = None, root: int = 0) -> Any:
        return self.allgather(obj if self.rank == root else None)[root]

    def allreduce(self, sendobj: Any, op: Any = None) -> Any:
        """The sum of all workers' objects, or their reduction by `op`: a function of two arguments, or mpi4py's."""
        combine: Callable[[Any, Any], Any] = operator.add if op is None else op
        return functools.reduce(combine, self.allgather(sendobj))

    def reduce(self, sendobj: object, op: object = None, root: int = 0) -> Any:
        result = self.allreduce(sendobj, op)
        return result if self.rank == root else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._mpi(name), name)

    def _mpi(self, asked: str) -> Any:
        transport: Any = self._partition.transport
        if transport.name != "mpi":
            raise UnsupportedError(
                f"{self._partition} has no MPI communicator, and `{asked}` is not among the calls that Gridwise makes "
                "without one.\n  fix: start the script with mpiexec, or use the partition's broadcast_data, "
                "allgather_data, allreduce_data."
            )
        if self._real is None:
            over = transport.comm_of(transport.everyone)
            group = over.Get_group().Incl(list(self._partition.ranks))
            self._real = over.Create_group(group)
        return self._real

    def Free(self) -> None:
        """Free the real communicator, if one was created."""
        if self._real is not None:
            self._real.Free()
            self._real = None
