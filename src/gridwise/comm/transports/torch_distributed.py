"""torch.distributed: gloo, which works everywhere, and nccl for CUDA tensors.

A process group that the user has already made is used and never destroyed. All traffic runs over our own groups, made by
their members only and named after them: `new_group` would name a group after the number of groups this process has made,
which differs between workers as soon as some belong to more teams than others, and they would wait for each other under
different names. Host tensors always go through gloo; CUDA tensors go through nccl if it is available and each worker has its
own device, else they are staged through the host.

Gloo leaves a worker waiting when a worker that it depends on only indirectly dies. So `cut` ends the connections of our
groups, and the one to the store through which groups are made: all waits on them, here or at the other end, return with an
error. But gloo then loses track of messages that are half sent (see `open_sockets`), and nothing ends the wait for them. So
messages in flight between living workers get a moment to arrive. A collective, which gloo runs in its own thread, is waited
for in slices of time, and abandoned after a cut. A wait for a point-to-point message cannot be abandoned: the watch ends the
process.

Gloo's threads must end before Python does: one that releases a tensor while the interpreter shuts down crashes the process
("terminate called without an active exception"), or hangs it. So a transport that is still open is closed at exit.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import itertools
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from ...log import logger
from ..messages import dissemination, wire_dtypes
from ..messages.requests import NOTHING, Request
from ..node import find_node
from ..settings import timeout
from ..supervision import open_sockets, original_stderr
from ..supervision.open_sockets import OpenSocket
from .base import PeerTensor, Team, Transport
from .fresh_store import fresh, may_be_used
from .own_devices import can_use_nccl

TIMEOUT = timedelta(days=7)
"""The timeout of the groups themselves: the watch ends a wait earlier, with a better message."""

FINISH_SECONDS = 1.0
"""How long messages in flight between living workers may take to arrive before a cut; no new ones are sent."""

LAST_SECONDS = 3.0
"""How long sums that nobody has waited for may take to finish at exit."""

SLICE = timedelta(seconds=1)
"""How long to wait for gloo before checking whether the connections were cut. Its collectives continue meanwhile."""

MANY = 16
"""Team size above which small data go by dissemination, not round gloo's ring, which takes a message for each worker."""

_worlds: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)
"""The number of transports made over the same workers; they make them together, so they count alike."""


@dataclass
class _Messages:
    works: list[dist.Work]
    tensors: list[Tensor]

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        self.tensors.clear()


@dataclass
class _Collective:
    transport: TorchTransport
    work: dist.Work
    tensor: Tensor

    def wait(self) -> None:
        if self.tensor.is_cuda:
            self.work.wait()  # without a timeout, which would make the host wait for the device
        else:
            self.transport._finish(self.work)
        self.transport._posted.discard(self.work)


class TorchTransport(Transport):
    """The workers of a torch.distributed process group, the default one unless another is given."""

    can_be_cut = True

    def __init__(
        self, group: dist.ProcessGroup | None = None, owns_world: bool = False, ranks: Sequence[int] | None = None
    ) -> None:
        self._ranks = list(ranks) if ranks is not None else dist.get_process_group_ranks(group or dist.group.WORLD)
        super().__init__(self._ranks.index(dist.get_rank()), len(self._ranks))
        self._name = f"gridwise {next(_worlds[tuple(self._ranks)])} of {_spelt(self._ranks)}"
        self._owns_world = owns_world
        self._sockets: set[OpenSocket] = set()
        self._before: set[OpenSocket] | None = None
        self._is_ending = self._is_cut = False
        self._posted: set[dist.Work] = set()
        self._groups: dict[tuple[str, Team], dist.ProcessGroup] = {}
        self.group_of(self.everyone)  # now, while all take part; later only some may send messages
        self.carries_cuda = can_use_nccl(self)
        self.name = "gloo+nccl" if self.carries_cuda else "gloo"
        if self.carries_cuda:
            self.group_of(self.everyone, "nccl")
        self.node = find_node(self, 0)
        atexit.register(self._close_at_exit)

    def group_of(self, team: Team, backend: str = "gloo") -> dist.ProcessGroup:
        """The process group of a team; made on first use, by its members together."""
        if self._is_ending:
            raise RuntimeError("the connections of this worker are being cut")
        group = self._groups.get((backend, team))
        if group is None:
            self._before = open_sockets.connections()
            try:
                group = _make_group(f"{self._name}: {backend} {_spelt(team)}", [self._ranks[i] for i in team], backend)
                self._sockets |= open_sockets.connections() - self._before
            finally:
                self._before = None
            self._groups[backend, team] = group
            logger.debug("%s group of workers %s made", backend, team)
        return group

    def _for(self, x: Tensor, team: Team) -> dist.ProcessGroup:
        return self.group_of(team, "nccl" if x.is_cuda else "gloo")

    def _post(self, sends: Sequence[PeerTensor], receives: Sequence[PeerTensor]) -> Request:
        group = self._for((*sends, *receives)[0][1], self.everyone)
        moves = [dist.P2POp(dist.irecv, wire_dtypes.as_bytes(x), self._ranks[peer], group) for peer, x in receives]
        moves += [dist.P2POp(dist.isend, wire_dtypes.as_bytes(x), self._ranks[peer], group) for peer, x in sends]
        return _Messages(dist.batch_isend_irecv(moves), [x for _, x in (*receives, *sends)])

    def _all_sum(self, x: Tensor, team: Team) -> None:
        if x.numel():
            self._finish(dist.all_reduce(x, group=self._for(x, team), async_op=not x.is_cuda))

    def _post_sum(self, x: Tensor, team: Team) -> Request:
        if not x.numel():
            return NOTHING
        work = dist.all_reduce(x, group=self._for(x, team), async_op=True)
        self._posted = {work, *(one for one in self._posted if not one.is_completed())}
        return _Collective(self, work, x)

    def _sum_to(self, x: Tensor, root: int, team: Team) -> None:
        if x.numel():
            self._finish(dist.reduce(x, self._ranks[root], group=self._for(x, team), async_op=not x.is_cuda))

    def _copy_from(self, x: Tensor, root: int, team: Team) -> None:
        if x.numel():
            x, group = wire_dtypes.as_bytes(x), self._for(x, team)
            self._finish(dist.broadcast(x, self._ranks[root], group=group, async_op=not x.is_cuda))

    def _all_max(self, values: np.ndarray, team: Team) -> None:
        if len(team) > MANY:
            dissemination.all_max(values, team, self.rank, self._swap)
            return
        x, group = torch.from_numpy(values), self.group_of(team)
        self._finish(dist.all_reduce(x, dist.ReduceOp.MAX, group=group, async_op=True))

    def _gather_bytes(self, data: bytes, sizes: list[int], team: Team) -> list[bytes]:
        longest = max(sizes)
        mine = torch.zeros(longest, dtype=torch.uint8, device="cpu")
        mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else mine[:0]
        if len(team) > MANY and longest:
            rows = dissemination.all_gather(mine, team, self.rank, self._swap)
            return [row.numpy().tobytes()[:size] for row, size in zip(rows, sizes, strict=True)]
        parts = [torch.empty(longest, dtype=torch.uint8, device="cpu") for _ in team]
        self._finish(dist.all_gather(parts, mine, group=self.group_of(team), async_op=True))
        return [part.numpy().tobytes()[:size] for part, size in zip(parts, sizes, strict=True)]

    def _swap(self, to: int, x: Tensor, source: int, into: Tensor) -> None:
        self._post_by_path([(to, x)], [(source, into)]).wait()

    def _finish(self, work: dist.Work | None) -> None:
        """Wait for a gloo collective; None stands for an nccl one, which is already queued on the device."""
        while work is not None:
            try:
                work.wait(SLICE)
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # raises what gloo has raised
                    return
                if self._is_cut:
                    raise
            except BaseException:  # an interrupt
                self._posted.add(work)
                raise

    def cut(self) -> None:
        self._is_ending = True
        if self.node is not None:
            self.node.cut()
        self._never_free()
        time.sleep(FINISH_SECONDS)
        self._is_cut = True
        open_sockets.cut(self._ours())

    def _ours(self) -> set[OpenSocket]:
        """The connections of our groups, including one being made, and the connection to the store."""
        open_now = open_sockets.connections()
        ours = self._sockets & open_now
        if self._before is not None:
            ours |= open_now - self._before
        port = _store_port()
        return ours | {c for c in open_now if c.peer_port == port}

    def addresses(self) -> list[str]:
        return sorted({here[0] for c in self._sockets if isinstance(here := c.here, tuple)})

    def abort(self, code: int = 1) -> None:
        open_sockets.shut(self._ours())
        original_stderr.flush_all()  # a stream that was closed must not keep the job from ending
        os._exit(code)

    def _close_at_exit(self) -> None:
        deadline = time.monotonic() + LAST_SECONDS
        while self._is_busy() and time.monotonic() < deadline:
            time.sleep(0.01)
        if self.refuses or self._is_ending or self._is_busy():
            return  # closed or in a forked child, or gloo waits in vain for some messages
        self.close()

    def _is_busy(self) -> bool:
        return not all(work.is_completed() for work in self._posted)

    def _abandon(self) -> None:
        if self._is_busy():
            self._never_free()
        open_sockets.shut(self._sockets & open_sockets.connections())
        self._close()

    def _never_free(self) -> None:
        """Keep the groups for ever: freeing one waits for its collectives, and gloo may have lost track of some."""
        for group in list(self._groups.values()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))

    def _close(self) -> None:
        self.node = None
        atexit.unregister(self._close_at_exit)
        if self._is_ending:
            self._never_free()
        for group in self._groups.values():
            with contextlib.suppress(ValueError):  # the script has already destroyed all groups at its end
                dist.destroy_process_group(group)
        self._groups.clear()
        self._sockets.clear()
        if self._owns_world and dist.is_initialized():
            dist.destroy_process_group()


def start_torch() -> TorchTransport:
    """A transport over the default process group, which is made from torchrun's environment if there is none."""
    owns = not dist.is_initialized()
    if owns and may_be_used():
        store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
        store = fresh(store, rank, size, timeout())
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    elif owns:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    return TorchTransport(owns_world=owns)


def _make_group(name: str, ranks: list[int], backend: str) -> dist.ProcessGroup:
    """Like `new_group`, but called by the members only, and under a name of our choice."""
    group, _ = c10d._new_process_group_helper(
        len(ranks), ranks.index(dist.get_rank()), ranks, dist.Backend(backend), c10d._get_default_store(),
        c10d.GroupName(name), timeout=TIMEOUT,
    )  # fmt: skip
    c10d._world.pg_group_ranks[group] = {rank: i for i, rank in enumerate(ranks)}
    return group


def _spelt(ranks: Sequence[int]) -> str:
    """A short text for a list of ranks, the same on every worker."""
    text = ",".join(map(str, ranks))
    return text if len(text) < 60 else f"{len(ranks)} workers {hashlib.sha1(text.encode()).hexdigest()}"


def _store_port() -> int:
    store = c10d._get_default_store() if dist.is_initialized() else None
    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    return getattr(store, "port", -1)
