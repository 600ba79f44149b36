"""Transports over a user's own mpi4py communicator or torch.distributed process group."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.distributed as dist

from ...errors import PartitionError
from ..transports.base import Transport
from .find import begin

_of_group: dict[dist.ProcessGroup, Transport] = {}
user_transports: set[Transport] = set()
"""The open transports that were made here."""


def transport_over(comm: Any) -> Transport:
    """The transport over a communicator or process group, the same one every time; a transport is returned as it is."""
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
    user_transports.add(transport)
    transport.on_close.append(lambda: user_transports.discard(transport))
    return begin(transport)
