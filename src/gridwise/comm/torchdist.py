"""torch.distributed: gloo, which works everywhere, and nccl for CUDA tensors.

A process group that the user has already made is used and never destroyed. All traffic runs over groups of our own, made
by their members only. On the host it always goes through gloo; CUDA tensors go through nccl when it is there and each
worker has a device of its own, else they are staged through the host.

Gloo leaves a worker waiting when somebody further down the line dies. `cut` therefore shuts down the sockets that belong
to our groups: whoever waits on them, here or at the other end, returns with an error at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..log import logger
from . import wire
from .transport import Parcel, Pending, Team, Transport

TIMEOUT = timedelta(days=7)
"""Of the groups themselves: the watch ends a wait earlier, with a better message."""


@dataclass
class _Works:
    works: list[dist.Work]
    tensors: list[Tensor]

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        self.tensors.clear()


class TorchTransport(Transport):
    """The workers of a torch.distributed process group, the default one unless another is given."""

    def __init__(self, group: dist.ProcessGroup | None = None, owns_world: bool = False) -> None:
        parent = group if group is not None else dist.group.WORLD
        super().__init__(dist.get_rank(parent), dist.get_world_size(parent))
        self._ranks = dist.get_process_group_ranks(parent)
        self._owns_world = owns_world
        self._sockets: set[int] = set()
        self._groups: dict[tuple[str, Team], dist.ProcessGroup] = {}
        self.carries_cuda = _has_own_device() and dist.is_nccl_available()
        self.name = "gloo+nccl" if self.carries_cuda else "gloo"

    def group_of(self, team: Team, backend: str = "gloo") -> dist.ProcessGroup:
        """The process group of a team; made on first use, by its members together."""
        group = self._groups.get((backend, team))
        if group is None:
            before = _sockets()
            group = dist.new_group(
                [self._ranks[rank] for rank in team], timeout=TIMEOUT, backend=backend, use_local_synchronization=True
            )
            self._sockets |= _sockets() - before
            self._groups[backend, team] = group
            logger.debug("%s group of workers %s made", backend, team)
        return group

    def _for(self, x: Tensor, team: Team) -> dist.ProcessGroup:
        return self.group_of(team, "nccl" if x.is_cuda else "gloo")

    def _post(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Pending:
        group = self._for((*sends, *receives)[0][1], self.everyone)
        moves = [dist.P2POp(dist.irecv, wire.as_bytes(x), self._ranks[peer], group) for peer, x in receives]
        moves += [dist.P2POp(dist.isend, wire.as_bytes(x), self._ranks[peer], group) for peer, x in sends]
        return _Works(dist.batch_isend_irecv(moves), [x for _, x in (*receives, *sends)])

    def _all_sum(self, x: Tensor, team: Team) -> None:
        if x.numel():
            dist.all_reduce(x, group=self._for(x, team))

    def _sum_to(self, x: Tensor, root: int, team: Team) -> None:
        if x.numel():
            dist.reduce(x, self._ranks[root], group=self._for(x, team))

    def _copy_from(self, x: Tensor, root: int, team: Team) -> None:
        if x.numel():
            dist.broadcast(wire.as_bytes(x), self._ranks[root], group=self._for(x, team))

    def _all_max(self, values: np.ndarray, team: Team) -> None:
        dist.all_reduce(torch.from_numpy(values), dist.ReduceOp.MAX, group=self.group_of(team))

    def _gather_bytes(self, data: bytes, sizes: list[int], team: Team) -> list[bytes]:
        longest = max(sizes)
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else mine[:0]
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in team]
        dist.all_gather(parts, mine, group=self.group_of(team))
        return [part.numpy().tobytes()[:size] for part, size in zip(parts, sizes, strict=True)]

    def cut(self) -> None:
        for fd in self._sockets:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    def abort(self, code: int = 1) -> None:
        self.cut()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _close(self) -> None:
        for group in self._groups.values():
            dist.destroy_process_group(group)
        self._groups.clear()
        self._sockets.clear()
        if self._owns_world and dist.is_initialized():
            dist.destroy_process_group()


def start_torch() -> TorchTransport:
    """The default process group if there is one, else a new one from the environment that torchrun has set."""
    owns = not dist.is_initialized()
    if owns:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    return TorchTransport(owns_world=owns)


def _has_own_device() -> bool:
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    return torch.cuda.is_available() and torch.cuda.device_count() >= local_size


def _sockets() -> set[int]:
    """The descriptors of this process's stream sockets that are connected."""
    found = set()
    for fd in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            with socket.socket(fileno=os.dup(fd)) as probe:
                if probe.type == socket.SOCK_STREAM and probe.getpeername():
                    found.add(fd)
    return found
