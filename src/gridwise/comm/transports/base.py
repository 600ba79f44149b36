"""The interface of a transport: point-to-point messages in batches, a few collectives, and a way to end the job.

A transport is thin. It knows its rank and the number of workers, moves contiguous tensors, and never decides what to
send: that is up to the geometry. A *team* is a sorted tuple of ranks; the library's group for it is made at its first
collective, kept, shared by all users of the same team, and freed by `close`.

The public methods here take tensors of any dtype on any device. They convert them to what the wire can carry
(`wire_dtypes`), record what the worker waits for (`waiting_for`, read by the watch), and translate the library's errors.
The path that data take, and the methods that a new transport implements, are in `data_path`; docs/extending.md walks
through an example.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...grid import Grid, Layout
from ..graph_breaks import capturing
from ..launching.cores import cores
from ..messages import wire_dtypes
from ..messages.packing import ReceiveBuffer, Views, packed
from ..messages.requests import NOTHING, Arriving, Both, Request
from ..supervision.drawn_batches import DrawnBatches
from ..supervision.waiting import Guarded, Supervised
from .data_path import DataPath
from .data_path import PeerTensor as PeerTensor
from .data_path import Team as Team

Method = TypeVar("Method", bound=Callable[..., Any])


def movement(method: Method) -> Method:
    """Decorate a transport method that moves tensors: during a capture it runs between two graphs."""

    @functools.wraps(method)
    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        capture = capturing()
        if capture is None or self.size == 1:
            return method(self, *args, **kwargs)
        return capture.run_between_graphs(functools.partial(method, self, *args, **kwargs))

    return moved  # type: ignore[return-value]


class Transport(Supervised, DataPath):
    """The connection to the other workers.

    Parameters
    ----------
    rank, size : this worker's rank, and the number of workers

    Examples
    --------
    >>> transport = gridwise.world().transport
    >>> transport.name, transport.rank, transport.size
    ('solo', 0, 1)
    """

    carries_meta = False
    """Whether meta tensors can be sent, which is possible only where no data are moved."""
    can_be_cut = False
    """Whether `cut` ends the waits of other workers. If not, only `abort` does."""

    def __init__(self, rank: int, size: int) -> None:
        Supervised.__init__(self, rank, size)
        DataPath.__init__(self)
        self.on_close: list[Callable[[], None]] = []
        self.cached_layers: dict[Any, Any] = {}
        """Layers made by functions, kept for their next call."""
        self.cores = max(1, cores() // size)
        """This worker's share of the cores; as if all workers were on this machine, until the watch sets it."""
        self.drawn_batches = DrawnBatches()
        """The batches that data loaders have given to this worker."""
        self._ordinals: Counter[str] = Counter()

    @property
    def everyone(self) -> Team:
        return tuple(range(self.size))

    def ordinal(self, text: str) -> int:
        """How often `text` was passed before: numbers equal layers, alike on workers that build them in the same order."""
        self._ordinals[text] += 1
        return self._ordinals[text] - 1

    def uncount(self, text: str) -> None:
        """Take back an `ordinal` whose layer was refused, perhaps with different texts on other workers."""
        self._ordinals[text] -= 1

    def declared_layout(
        self, grid: Grid, block: tuple[int, ...], whole: Sequence[int], what: str, team: Team
    ) -> Layout | None:
        """The layout of a tensor if it is known without communication; only a transport that moves nothing knows it."""
        return None

    # Messages

    @movement
    def exchange(self, sends: Sequence[PeerTensor], receives: Sequence[PeerTensor], what: str = "an exchange") -> None:
        """Send and receive all messages, and return when that is done."""
        self.post(sends, receives, what).wait()

    @movement
    def post(self, sends: Sequence[PeerTensor], receives: Sequence[PeerTensor], what: str = "an exchange") -> Request:
        """Start sending and receiving; the tensors must not be touched until `wait` has returned."""
        if not sends and not receives:
            return NOTHING
        wait = self.waiting_for_messages(what, sends, receives)
        self.count(sends, receives)
        with wait:
            return Guarded(self._post_by_path(sends, receives), wait)

    @movement
    def move(
        self,
        sends: Sequence[tuple[int, Views]],
        receives: Sequence[tuple[int, Views]],
        dtype: torch.dtype,
        what: str = "a movement",
        add: bool = False,
    ) -> Request:
        """Start sending views to peers and receiving into views from peers, copied or added when the request is waited for."""
        near_out, sends = self._near(sends, dtype)
        near_in, receives = self._near(receives, dtype)
        near: Request = NOTHING
        if near_out or near_in:
            assert self.node is not None
            wait = self.waiting_for_messages(what, near_out, near_in)
            self.count(near_out, near_in)
            with wait:
                near = Guarded(self.node.post(near_out, near_in, dtype, add), wait)
        if not sends and not receives:
            return near
        buffers = [(peer, ReceiveBuffer.of(views, dtype, add)) for peer, views in receives]
        out = [(peer, packed(views)) for peer, views in sends]
        into = [(peer, buffer.buffer) for peer, buffer in buffers]
        wait = self.waiting_for_messages(what, out, into)
        self.count(out, into)
        with wait:
            pending = self._post_staged(out, into)
        far: Request = Guarded(pending, wait)
        if any(buffer.views for _, buffer in buffers):
            far = Arriving(far, [buffer for _, buffer in buffers])
        return far if near is NOTHING else Both(far, near)

    # Collectives

    @movement
    def all_sum(self, x: Tensor, team: Team, what: str = "a sum") -> Tensor:
        """The sum of `x` over the team as a new tensor, bitwise the same on all of its workers."""
        with self.waiting_for(what, team):
            return wire_dtypes.summed(x, lambda total, part: self._sum_into(total, part, team), self._carries(x, team))

    @movement
    def post_sum(self, x: Tensor, team: Team, what: str = "a sum", wire: torch.dtype | None = None) -> Request:
        """Start replacing the contiguous `x` by its sum over the team; it must not be touched until `wait` has returned.

        All workers of the team begin the same sums in the same order before they wait for one of them. `wire` is the dtype in
        which the numbers are sent, by default that of the sum; small tensors, where it would gain nothing, ignore it.
        """
        if len(team) == 1:
            return NOTHING
        wire_dtypes.check_summable(x)
        waiting = self.waiting_for(what, team)
        with waiting:
            return Guarded(self._begin_sum(torch.view_as_real(x) if x.is_complex() else x, team, wire), waiting)

    @movement
    def all_gather(self, row: Tensor, team: Team, what: str = "a gathering", table: Tensor | None = None) -> Tensor:
        """The flat contiguous rows of all workers of the team, of one length and dtype, in its order.

        The result may be `table`, which already holds `row` in its place.
        """
        if len(team) == 1:
            return row[None]
        if not row.numel():
            return row.new_empty((len(team), 0))
        if (node := self._node_of(team, row)) is not None:
            with self.waiting_for(what, team):
                return node.all_gather(row, team, table)
        rows = row.new_zeros((len(team), row.numel()))
        rows[team.index(self.rank)] = row
        bits = rows.view(wire_dtypes.SAME_BITS[row.element_size()])  # as integers: a sum with 0.0 would change -0.0
        return self.all_sum(bits, team, what).view(row.dtype)

    @movement
    def sum_to(self, x: Tensor, root: int, team: Team, what: str = "a sum") -> Tensor | None:
        """The sum of `x` over the team as a new tensor on `root`, None elsewhere."""
        with self.waiting_for(what, team):
            total = wire_dtypes.summed(
                x, lambda total, part: self._sum_at(total, part, root, team), self._carries(x, team)
            )
            return total if self.rank == root else None

    @movement
    def copy_from(self, x: Tensor, root: int, team: Team, what: str = "a broadcast") -> None:
        """Fill the contiguous tensor `x` with that of `root`."""
        with self.waiting_for(what, team):
            if (node := self._node_of(team, x)) is not None:
                node.copy_from(wire_dtypes.as_bytes(x), root, team)
                return
            host = wire_dtypes.to_host(x) if x.is_cuda and not self.carries_cuda else x
            self._copy_from(host, root, team)
            if host is not x:
                x.copy_(host)

    def all_max(self, values: np.ndarray, team: Team, what: str = "an agreement") -> None:
        """Replace the int64 array by its element-wise maximum over the team. For control data: small and on the host."""
        if len(team) > 1:
            with self.waiting_for(what, team):
                if (node := self._node_of(team, values)) is not None:
                    node.all_max(values, team)
                else:
                    self._all_max(values, team)

    def gather_bytes(self, data: bytes, team: Team, what: str = "a gathering of values") -> list[bytes]:
        """The `data` of all workers of the team, in its order, on each of them."""
        if len(team) == 1:
            return [data]
        sizes = np.zeros(len(team), dtype=np.int64)
        sizes[team.index(self.rank)] = len(data)
        self.all_max(sizes, team, what)
        known = [int(n) for n in sizes]
        with self.waiting_for(what, team):
            if (node := self._node_of(team, bytes(max(known)))) is not None:
                return node.gather_bytes(data, known, team)
            return self._gather_bytes(data, known, team)

    def barrier(self, team: Team | None = None) -> None:
        """Return when every worker of the team has arrived."""
        self.all_max(np.zeros(1, dtype=np.int64), team or self.everyone, "a barrier")

    # Closing and aborting

    def addresses(self) -> list[str]:
        """Local addresses of this worker's connections to the others, as far as the transport knows them."""
        return []

    def close(self) -> None:
        """Free all resources. Collective: all workers call it, or none. Any later call raises."""
        self._forget()
        self._close()

    def abandon(self) -> None:
        """Free what can be freed while messages that nobody will receive are in flight. Collective, like `close`."""
        self._forget()
        self._abandon()

    def _forget(self) -> None:
        for callback in reversed(self.on_close):
            callback()
        self.on_close.clear()
        self.cached_layers.clear()
        self.is_closed = self.refuses = True

    def cut(self) -> None:
        """Break all connections of this worker, so that nobody waits for it, and refuse new calls. From any thread."""
        return

    @abstractmethod
    def abort(self, code: int = 1) -> None:
        """End the whole job from here, without waiting for other workers."""

    def _close(self) -> None:
        return None

    def _abandon(self) -> None:
        self._close()

    def __deepcopy__(self, memo: dict) -> Transport:
        return self  # copies of a layer share the transport

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "layers and models on a grid cannot be pickled: the transport under them belongs to its process.\n"
            "  fix: save state_dict(), or use gridwise.checkpoint, and make them anew on the other side."
        )

    def __repr__(self) -> str:
        return f"<{self.name}: worker {self.rank} of {self.size}>"
