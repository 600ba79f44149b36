"""A transport over what a user has: an mpi4py communicator, or a process group of torch.distributed."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.distributed as dist

from ...errors import PartitionError
from ..transports.base import Transport
from .find import begin

_of_group: dict[dist.ProcessGroup, Transport] = {}
given: set[Transport] = set()
"""Those that were made here and are open."""


def transport_over(comm: Any) -> Transport:
    """The transport over a communicator, a process group, or itself; the same one when it is asked for again."""
    if isinstance(comm, Transport):
        return comm
    if isinstance(comm, dist.ProcessGroup):
        from ..transports.torch_distributed import TorchTransport

        if comm not in _of_group:
            _of_group[comm] = _begin(TorchTransport(comm))
            _of_group[comm].on_close.append(partial(_of_group.__delitem__, comm))
        return _of_group[comm]
    if hasattr(comm, "Get_rank"):
        from ..transports.mpi import MPITransport, keep_with, kept_with

        known = kept_with(comm)
        if known is None:
            known = MPITransport(comm)
            keep_with(comm, known)
            _begin(known)
        return known
    raise PartitionError(
        f"`comm` (={comm!r}) must be an mpi4py communicator, a torch.distributed process group or a transport."
    )


def _begin(transport: Transport) -> Transport:
    given.add(transport)
    transport.on_close.append(lambda: given.discard(transport))
    return begin(transport)
