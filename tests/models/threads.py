"""Workers that are threads of one process: for many small comparisons, where starting and waiting would take all the time.

The programs are those of real workers; only the messages go through a dict. One thread runs at a time, until it has to wait:
several would spend most of the time on taking the interpreter from one another.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from gridwise.comm.transports.base import PeerTensor, Team, Transport

PATIENCE = 60.0


class Hub:
    """What the threads share."""

    def __init__(self) -> None:
        self.changed, self.turn = threading.Condition(), threading.Lock()
        self.mail: dict[tuple[int, int], deque[Tensor]] = {}
        self.rounds: dict[tuple[Team, int], dict[int, Any]] = {}
        self.failed = False

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait until others have made something ready; who calls has `changed` and `turn`."""
        if ready():
            return
        self.turn.release()
        try:
            self._wait_for(ready)
        finally:
            self.changed.release()
            self.turn.acquire()
            self.changed.acquire()

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        if not self.changed.wait_for(lambda: ready() or self.failed, PATIENCE) or not ready():
            self.failed = True
            self.changed.notify_all()
            raise AssertionError("a worker waits for a message that nobody sends")


class ThreadTransport(Transport):
    name = "threads"

    def __init__(self, rank: int, size: int, hub: Hub) -> None:
        super().__init__(rank, size)
        self.hub = hub
        self.calls: Counter[Team] = Counter()

    def abort(self, code: int = 1) -> None:
        raise AssertionError("aborted")

    def _post(self, sends: Sequence[PeerTensor], receives: Sequence[PeerTensor]) -> Any:
        with self.hub.changed:
            for peer, tensor in sends:
                self.hub.mail.setdefault((self.rank, peer), deque()).append(tensor.detach().clone())
            self.hub.changed.notify_all()
        return _Arrivals(self, receives)

    def _round(self, mine: Any, team: Team) -> list[Any]:
        key = team, self.calls[team]
        self.calls[team] += 1
        with self.hub.changed:
            given = self.hub.rounds.setdefault(key, {})
            given[self.rank] = mine
            self.hub.changed.notify_all()
            self.hub.wait_for(lambda: len(given) == len(team))
        return [given[rank] for rank in team]

    def _all_sum(self, x: Tensor, team: Team) -> None:
        if len(team) == 1:
            return
        parts = self._round(x.detach(), team)
        if self.rank == team[0]:  # the first adds all up, in an order that is always the same
            for part in parts[1:]:
                x.add_(part.reshape(x.shape))
        total = self._round(x.detach(), team)[0]
        if self.rank != team[0]:
            x.copy_(total.reshape(x.shape))
        self._round(None, team)  # nobody changes the sum before all have it

    def _sum_to(self, x: Tensor, root: int, team: Team) -> None:
        self._all_sum(x, team)

    def _copy_from(self, x: Tensor, root: int, team: Team) -> None:
        x.copy_(self._round(x.detach().clone(), team)[team.index(root)])

    def _all_max(self, values: np.ndarray, team: Team) -> None:
        values[...] = np.max(self._round(values.copy(), team), axis=0)

    def _gather_bytes(self, data: bytes, sizes: list[int], team: Team) -> list[bytes]:
        return self._round(data, team)


class _Arrivals:
    def __init__(self, transport: ThreadTransport, receives: Sequence[PeerTensor]) -> None:
        self.transport, self.receives = transport, receives

    def wait(self) -> None:
        hub = self.transport.hub
        for peer, tensor in self.receives:
            key = peer, self.transport.rank
            with hub.changed:
                hub.wait_for(lambda key=key: bool(hub.mail.get(key)))  # type: ignore[misc]
                arrived = hub.mail[key].popleft()
            assert arrived.numel() == tensor.numel()
            tensor.copy_(arrived.reshape(tensor.shape))


def on_threads(size: int, body: Callable[[ThreadTransport], Any]) -> list[Any]:
    """What `body` returns on each of so many workers; the first error is raised."""
    hub = Hub()
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def run(rank: int) -> None:
        with hub.turn:
            try:
                results[rank] = body(ThreadTransport(rank, size, hub))
            except BaseException as error:
                errors[rank] = error
                with hub.changed:
                    hub.failed = True
                    hub.changed.notify_all()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [error for error in errors if error is not None]
    if found:
        raise next((e for e in found if "nobody sends" not in str(e)), found[0])
    return results
