"""What a transport offers: point-to-point messages in batches, a few collectives, and a way to end all.

A transport is thin. It knows its rank and the number of workers, moves contiguous tensors, and never decides what to
send: that is the geometry's business. A *team* is a sorted tuple of ranks; the group that a library needs to talk
inside it is made at the first collective use, kept, shared by all who name the same team, and freed by `close`.

The public methods here take tensors of any dtype on any device. They turn them into what the wire can carry
(`wire_dtypes`), remember what the worker waits for (`waiting_for`, read by the watch), and translate the library's
errors. A new transport writes the methods with a leading underscore and nothing else; CONTRIBUTING.md walks through
one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from ...errors import FaultError
from ...grid import Grid, Layout
from ..graph_breaks import movement
from ..launching.cores import cores
from ..messages import wire_dtypes
from ..messages.packing import Landing, Views, packed
from ..messages.requests import NOTHING, Arriving, Both, Request, Unstaging
from ..messages.share_sum import Begun, LateSum, ShareSum
from ..node import FEW, Node
from ..supervision.drawn_batches import DrawnBatches
from ..supervision.forks import Refuses
from ..supervision.waiting import Guarded, Waiting, Watching

Team = tuple[int, ...]
Parcel = tuple[int, Tensor]
"""A peer and the contiguous tensor that goes to it or comes from it."""


class Transport(Refuses, ABC):
    """The way to the other workers.

    Parameters
    ----------
    rank, size : this worker, and how many there are

    Examples
    --------
    >>> transport = gridwise.world().transport
    >>> transport.name, transport.rank, transport.size
    ('solo', 0, 1)
    """

    name: str
    rank: int
    size: int
    carries_cuda = False
    """Whether CUDA tensors are sent directly. If not, they are staged through the host."""
    carries_meta = False
    """Whether tensors without numbers can be sent: where nothing is."""
    can_be_cut = False
    """Whether `cut` frees those who wait. If not, only `abort` does."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank = rank
        self.size = size
        self.watch: Watching | None = None
        self.waiting: Waiting | None = None
        self.on_close: list[Callable[[], None]] = []
        self.kept: dict[Any, Any] = {}
        """Layers that functions have made, for their next call."""
        self.node: Node | None = None
        """The way to the workers of the same machine, where it is better than the library's own."""
        self.cores = max(1, cores() // size)
        """Processor cores that this worker may count on: as if all workers were on this machine, until the watch knows."""
        self.collectives: dict[Team, int] = {}
        """How many collectives of each team this worker has come to: tells who waits in vain (see
        `finished_workers`)."""
        self.sent: dict[int, int] = defaultdict(int)
        self.received: dict[int, int] = defaultdict(int)
        """How many messages to and from each worker this one has started, for the same purpose."""
        self.drawn = DrawnBatches()
        """The batches that data loaders have given to this worker."""
        self._ordinals: Counter[str] = Counter()
        self._begun: list[ShareSum | LateSum] = []
        """Sums that were begun since somebody waited for one, in their order."""

    @property
    def everyone(self) -> Team:
        return tuple(range(self.size))

    def ordinal(self, text: str) -> int:
        """How often this text was given before: tells equal layers apart, alike on workers that build them in one order."""
        self._ordinals[text] += 1
        return self._ordinals[text] - 1

    def uncount(self, text: str) -> None:
        """Take back an `ordinal`: what it was for has been refused, perhaps with other texts on other workers."""
        self._ordinals[text] -= 1

    def declared_layout(
        self, grid: Grid, block: tuple[int, ...], whole: Sequence[int], what: str, team: Team
    ) -> Layout | None:
        """The layout of a tensor that need not be asked for; only a transport that moves nothing knows one."""
        return None

    # Messages

    @movement
    def exchange(self, sends: Sequence[Parcel], receives: Sequence[Parcel], what: str = "an exchange") -> None:
        """Send and receive all parcels and return when that is done."""
        self.post(sends, receives, what).wait()

    @movement
    def post(self, sends: Sequence[Parcel], receives: Sequence[Parcel], what: str = "an exchange") -> Request:
        """Start sending and receiving; the tensors are not to be touched until `wait` has returned."""
        if not sends and not receives:
            return NOTHING
        wait = self.waiting_for_messages(what, sends, receives)
        self.count(sends, receives)
        with wait:
            return Guarded(self._post_by_road(sends, receives), wait)

    @movement
    def move(
        self,
        sends: Sequence[tuple[int, Views]],
        receives: Sequence[tuple[int, Views]],
        dtype: torch.dtype,
        what: str = "a movement",
        add: bool = False,
    ) -> Request:
        """Start sending views to peers and receiving into views from peers, copied or added there when waited for."""
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
        landings = [(peer, Landing.of(views, dtype, add)) for peer, views in receives]
        pending = self.post(
            [(peer, packed(views)) for peer, views in sends],
            [(peer, landing.buffer) for peer, landing in landings],
            what,
        )
        far = Arriving(pending, [landing for _, landing in landings])
        return far if near is NOTHING else Both(far, near)

    def poster(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Callable[[], Request]:
        """A function that posts these parcels, on the host, each time that it is called; the caller keeps them."""
        return lambda: self._post_by_road(sends, receives)

    def _post_by_road(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Request:
        """Post parcels: those to workers of the same machine through its memory, others by the library."""
        if self.node is None:
            return self._post_staged(sends, receives)
        near_out, far_out = self._near([(peer, (wire_dtypes.as_bytes(x),)) for peer, x in sends], torch.uint8)
        near_in, far_in = self._near([(peer, (wire_dtypes.as_bytes(x),)) for peer, x in receives], torch.uint8)
        if not near_out and not near_in:
            return self._post_staged(sends, receives)
        near = self.node.post(near_out, near_in, torch.uint8)
        if not far_out and not far_in:
            return near
        return Both(self._post_staged([(p, x) for p, (x,) in far_out], [(p, x) for p, (x,) in far_in]), near)

    def _post_staged(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Request:
        """Post parcels by the library, by way of the host where it does not carry CUDA tensors."""
        if self.carries_cuda or not any(tensor.is_cuda for _, tensor in (*sends, *receives)):
            return self._post(sends, receives)
        hosts = [(peer, wire_dtypes.host_buffer(tensor)) for peer, tensor in receives]
        staged = [(peer, wire_dtypes.to_host(tensor)) for peer, tensor in sends]
        return Unstaging(self._post(staged, hosts), [(t, h) for (_, t), (_, h) in zip(receives, hosts, strict=True)])

    def _near(
        self, parcels: Sequence[tuple[int, Views]], dtype: torch.dtype
    ) -> tuple[Sequence[tuple[int, Views]], Sequence[tuple[int, Views]]]:
        """Those that go through the memory of this machine, and the others: sender and receiver decide alike."""
        node = self.node
        if node is None or not parcels or not self._is_for_node(parcels[0][1][0]):
            return (), parcels
        near: list[tuple[int, Views]] = []
        far: list[tuple[int, Views]] = []
        is_cuda = parcels[0][1][0].is_cuda
        for peer, views in parcels:
            size = sum([view.numel() for view in views]) * dtype.itemsize
            (near if node.reaches(peer, size, is_cuda) else far).append((peer, views))
        return near, far

    def _node_of(self, team: Team, x: Tensor | np.ndarray | bytes) -> Node | None:
        """The machine that carries out a collective of `x`, if one does; all of the team decide alike."""
        node = self.node
        if node is None or (isinstance(x, Tensor) and not self._is_for_node(x)):
            return None
        size = len(x) if isinstance(x, bytes) else x.nbytes
        return node if node.covers(team, size, isinstance(x, Tensor) and x.is_cuda) else None

    def _is_for_node(self, x: Tensor) -> bool:
        """Whether workers of one machine may share the tensor's memory, and the library has no better way."""
        return x.device.type == "cpu" or (x.is_cuda and not self.carries_cuda)

    def _carries(self, x: Tensor, team: Team) -> bool:
        """Whether a collective of `x` needs no copy of it on the host."""
        return self.carries_cuda or self._node_of(team, x) is not None

    # Collectives

    @movement
    def all_sum(self, x: Tensor, team: Team, what: str = "a sum") -> Tensor:
        """A fresh tensor: the sum of `x` over the team, bitwise the same on all of it."""
        with self.waiting_for(what, team):
            return wire_dtypes.summed(x, lambda total, part: self._sum_into(total, part, team), self._carries(x, team))

    @movement
    def post_sum(self, x: Tensor, team: Team, what: str = "a sum", wire: torch.dtype | None = None) -> Request:
        """Start replacing the contiguous `x` by its sum over the team; not to be touched until `wait` has returned.

        All workers of the team begin the same sums in one order before they wait for one of them. `wire` is the dtype in which
        the numbers travel, that of the sum if left out; of a few numbers it makes no difference, so they travel as they are.
        """
        if len(team) == 1:
            return NOTHING
        wire_dtypes.check_summable(x)
        waiting = self.waiting_for(what, team)
        with waiting:
            return Guarded(self._begin_sum(torch.view_as_real(x) if x.is_complex() else x, team, wire), waiting)

    def _begin_sum(self, x: Tensor, team: Team, wire: torch.dtype | None) -> Request:
        carrier = wire_dtypes.summed_as(x, wire, len(team))
        if carrier.itemsize < x.element_size():
            return self._post_narrow_sum(x, team, carrier)
        is_staged = x.is_cuda and not self._carries(x, team)
        if is_staged or carrier != x.dtype:
            carried = x.to(carrier) if carrier != x.dtype else x
            carried = wire_dtypes.to_host(carried) if is_staged else carried
            return Unstaging(self._begin_sum(carried, team, None), [(x, carried)])
        node = self._node_of(team, x)
        if node is None:
            return self._post_sum(x, team)
        few = x.nbytes <= FEW
        return Begun(LateSum(lambda: node.all_sum(x, x, team)) if few else node.begin_sum(x, team), self._begun)

    def _post_narrow_sum(self, x: Tensor, team: Team, wire: torch.dtype) -> Request:
        """Start the sum of a float `x` of some size whose numbers travel as `wire`."""
        flat = x.view(-1)
        return Begun(ShareSum(flat, flat, team, self.rank, self._post_by_road, wire), self._begun)

    def _sum_into(self, total: Tensor, x: Tensor, team: Team) -> None:
        """Write the sum of `x`, which may have any strides, into the contiguous `total`."""
        node = self._node_of(team, total)
        if node is None or not total.numel():
            self._all_sum_into(total, x, team)
        else:
            node.all_sum(total, x if x.dtype == total.dtype and x.is_contiguous() else total.copy_(x), team)

    @movement
    def all_gather(self, row: Tensor, team: Team, what: str = "a gathering") -> Tensor:
        """The flat contiguous rows of all workers of the team, of one length and dtype, in its order."""
        if len(team) == 1:
            return row[None]
        if (node := self._node_of(team, row)) is not None:
            with self.waiting_for(what, team):
                return node.all_gather(row, team)
        rows = row.new_zeros((len(team), row.numel()))
        rows[team.index(self.rank)] = row
        return self.all_sum(rows, team, what)

    @movement
    def sum_to(self, x: Tensor, root: int, team: Team, what: str = "a sum") -> Tensor | None:
        """The sum of `x` over the team as a fresh tensor on `root`, None elsewhere."""
        with self.waiting_for(what, team):
            total = wire_dtypes.summed(
                x, lambda total, part: self._sum_at(total, part, root, team), self._carries(x, team)
            )
            return total if self.rank == root else None

    def _sum_at(self, total: Tensor, x: Tensor, root: int, team: Team) -> None:
        if self._node_of(team, total) is not None:
            self._sum_into(total, x, team)
        else:
            self._sum_to(total.copy_(x), root, team)

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
        """Replace the int64 array by its element-wise maximum over the team. The control channel: small and on the host."""
        if len(team) > 1:
            with self.waiting_for(what, team):
                if (node := self._node_of(team, values)) is not None:
                    node.all_max(values, team)
                else:
                    self._all_max(values, team)

    def gather_bytes(self, data: bytes, team: Team, what: str = "a gathering of values") -> list[bytes]:
        """What each worker of the team gave, in the team's order, on all of it."""
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

    # Life and death

    def waiting_for(self, what: str, team: Team) -> Waiting:
        """Say which collective is waited for while the body runs, and raise its failures as errors that name a worker."""
        self.collectives[team] = number = self.collectives.get(team, 0) + 1
        return Waiting(self, what, team, number)

    def waiting_for_messages(
        self, what: str, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]]
    ) -> Waiting:
        """The same for messages; who only sends waits for those who take them."""
        return Waiting(self, what, [peer for peer, _ in receives or sends], is_sending=not receives)

    def count(self, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]]) -> None:
        """Note that these messages are started."""
        for peer, _ in sends:
            self.sent[peer] += 1
        for peer, _ in receives:
            self.received[peer] += 1

    def explained(self, error: Exception, what: str) -> Exception:
        """An exception of the library, or the error that says what it means."""
        if not self._is_fault(error):
            return error
        named = self.watch.explain(error) if self.watch else None
        return named or FaultError(f"{what} failed on worker {self.rank} of {self.size} over {self.name}: {error}")

    def addresses(self) -> list[str]:
        """Addresses of this machine at which it talks to the others, as far as the transport knows."""
        return []

    def close(self) -> None:
        """Free what was made. Collective: all workers call it, or none. Whatever is called afterwards raises."""
        self._forget()
        self._close()

    def abandon(self) -> None:
        """Free what can be freed while messages that nobody will take are under way. Collective, like `close`."""
        self._forget()
        self._abandon()

    def _forget(self) -> None:
        for callback in reversed(self.on_close):
            callback()
        self.on_close.clear()
        self.kept.clear()
        self.is_closed = self.refuses = True

    def cut(self) -> None:
        """Break every connection of this worker, from any thread, so that nobody waits for it in vain; begin nothing new."""
        return

    @abstractmethod
    def abort(self, code: int = 1) -> None:
        """End the whole job from here, without waiting for anyone."""

    # What a transport writes: contiguous tensors, on the host unless `carries_cuda`

    @abstractmethod
    def _post(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Request: ...

    def _all_sum_into(self, total: Tensor, x: Tensor, team: Team) -> None:
        """`_all_sum` of `x`, which may have any strides, into the contiguous `total`."""
        self._all_sum(total.copy_(x), team)

    @abstractmethod
    def _all_sum(self, x: Tensor, team: Team) -> None: ...

    def _post_sum(self, x: Tensor, team: Team) -> Request:
        """Start `_all_sum`; a transport whose library sums in the background overrides this."""
        self._all_sum_into(x, x, team)
        return NOTHING

    @abstractmethod
    def _sum_to(self, x: Tensor, root: int, team: Team) -> None: ...

    @abstractmethod
    def _copy_from(self, x: Tensor, root: int, team: Team) -> None: ...

    @abstractmethod
    def _all_max(self, values: np.ndarray, team: Team) -> None: ...

    @abstractmethod
    def _gather_bytes(self, data: bytes, sizes: list[int], team: Team) -> list[bytes]: ...

    def _is_fault(self, error: Exception) -> bool:
        """Whether an exception of the library means that the network or a peer failed."""
        return isinstance(error, RuntimeError)

    def _close(self) -> None:
        return None

    def _abandon(self) -> None:
        self._close()

    def __deepcopy__(self, memo: dict) -> Transport:
        return self  # copies of a layer talk over the same wire

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "layers and models on a grid cannot be pickled: the transport under them belongs to its process.\n"
            "  fix: save state_dict(), or use gridwise.checkpoint, and make them anew on the other side."
        )

    def __repr__(self) -> str:
        return f"<{self.name}: worker {self.rank} of {self.size}>"
