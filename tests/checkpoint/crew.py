"""Workers as threads of this process: many worker counts cheaply, with the same code above the transport."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gridwise.comm.messages.requests import Request
from gridwise.comm.transports.base import PeerTensor, Team, Transport
from gridwise.partition import Partition, world


class _Meeting:
    """Where the members of a team leave something and take what all have left."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.left: dict[int, Any] = {}

    def all_of(self, rank: int, item: Any) -> dict[int, Any]:
        self.left[rank] = item
        self.barrier.wait()
        everything = dict(self.left)
        self.barrier.wait()
        return everything


class Hub:
    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self.meetings: dict[Team, _Meeting] = {}
        self.boxes: dict[tuple[int, int], queue.Queue[Tensor]] = {}

    def meeting(self, team: Team) -> _Meeting:
        with self.lock:
            return self.meetings.setdefault(team, _Meeting(len(team)))

    def box(self, source: int, target: int) -> queue.Queue[Tensor]:
        with self.lock:
            return self.boxes.setdefault((source, target), queue.Queue())

    def break_up(self) -> None:
        with self.lock:
            for meeting in self.meetings.values():
                meeting.barrier.abort()


class ThreadTransport(Transport):
    name = "threads"

    def __init__(self, hub: Hub, rank: int) -> None:
        super().__init__(rank, hub.size)
        self.hub = hub

    def _all(self, team: Team, item: Any) -> list[Any]:
        found = self.hub.meeting(team).all_of(self.rank, item)
        return [found[rank] for rank in team]

    def _post(self, sends: Sequence[PeerTensor], receives: Sequence[PeerTensor]) -> Request:
        for peer, x in sends:
            self.hub.box(self.rank, peer).put(x.clone())
        return _Receiving(self, receives)

    def _all_sum(self, x: Tensor, team: Team) -> None:
        x.copy_(torch.stack(self._all(team, x.clone())).sum(0))

    def _sum_to(self, x: Tensor, root: int, team: Team) -> None:
        self._all_sum(x, team)

    def _copy_from(self, x: Tensor, root: int, team: Team) -> None:
        x.copy_(self._all(team, x.clone())[team.index(root)])

    def _all_max(self, values: np.ndarray, team: Team) -> None:
        values[:] = np.max(self._all(team, values.copy()), axis=0)

    def _gather_bytes(self, data: bytes, sizes: list[int], team: Team) -> list[bytes]:
        return self._all(team, data)

    def abort(self, code: int = 1) -> None:
        self.hub.break_up()


class _Receiving:
    def __init__(self, transport: ThreadTransport, receives: Sequence[PeerTensor]) -> None:
        self.transport, self.receives = transport, receives

    def wait(self) -> None:
        for peer, x in self.receives:
            x.copy_(self.transport.hub.box(peer, self.transport.rank).get(timeout=60))


def crew(size: int, body: Callable[[Partition], Any]) -> list[Any]:
    """Run `body` on so many workers and return what each returns; the first worker's exception is raised."""
    hub = Hub(size)
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = body(world(ThreadTransport(hub, rank)))
        except BaseException as error:
            errors[rank] = error
            if isinstance(error, threading.BrokenBarrierError):
                return
            threading.Timer(5, hub.break_up).start() if size > 1 else None

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error
    return results


def crew_errors(size: int, body: Callable[[Partition], Any]) -> list[Exception | None]:
    """What each of so many workers raises."""

    def caught(P: Partition) -> Exception | None:
        try:
            body(P)
        except Exception as error:
            return error
        return None

    return crew(size, caught)


@contextmanager
def meetings_of(P: Partition) -> Iterator[list[Team]]:
    """The teams that this worker meets while the body runs, one for each meeting."""
    met: list[Team] = []
    meet = P.transport._all_max

    def noted(values: np.ndarray, team: Team) -> None:
        met.append(team)
        meet(values, team)

    P.transport._all_max = noted  # type: ignore[method-assign]
    try:
        yield met
    finally:
        P.transport._all_max = meet  # type: ignore[method-assign]
