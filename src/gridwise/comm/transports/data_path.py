"""The path that contiguous tensors take to other workers: shared memory, or the transport's library.

    workers of this machine    `node`: shared memory, and CUDA IPC for tensors on a device
    others                     the library; CUDA tensors are staged through the host where it cannot carry them

Both ends make the same choice, from what they know of each other and from the number of bytes. The public interface is in
`base`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..messages import wire_dtypes
from ..messages.chunked_sum import Begun, ChunkedSum, LateSum
from ..messages.packing import Views, volume
from ..messages.requests import NOTHING, Both, Request, Unstaging
from ..node import FEW, Node

Team = tuple[int, ...]
PeerTensor = tuple[int, Tensor]
"""A peer and the contiguous tensor that goes to it or comes from it."""


class DataPath(ABC):
    """The operations of a transport's library, with the node in its place between workers of one machine."""

    rank: int
    carries_cuda = False
    """Whether the library sends CUDA tensors directly. If not, they are staged through the host."""

    def __init__(self) -> None:
        self.node: Node | None = None
        """The connection to the workers of the same machine, where it is better than the library's own."""
        self._begun: list[ChunkedSum | LateSum] = []
        """The sums that were begun since one was last waited for, in order."""

    # The choice of path

    def _near(
        self, messages: Sequence[tuple[int, Views]], dtype: torch.dtype
    ) -> tuple[Sequence[tuple[int, Views]], Sequence[tuple[int, Views]]]:
        """The messages that go through shared memory, and the others; sender and receiver decide alike."""
        node = self.node
        if node is None or not messages or not self._is_for_node(messages[0][1][0]):
            return (), messages
        near: list[tuple[int, Views]] = []
        far: list[tuple[int, Views]] = []
        is_cuda = messages[0][1][0].is_cuda
        for peer, views in messages:
            size = volume(views) * dtype.itemsize
            (near if node.reaches(peer, size, is_cuda) else far).append((peer, views))
        return near, far

    def _node_of(self, team: Team, x: Tensor | np.ndarray | bytes) -> Node | None:
        """The node, if it carries out a collective of `x`, else None; all of the team decide alike."""
        node = self.node
        if node is None or (isinstance(x, Tensor) and not self._is_for_node(x)):
            return None
        size = len(x) if isinstance(x, bytes) else x.nbytes
        return node if node.covers(team, size, isinstance(x, Tensor) and x.is_cuda) else None

    def _is_for_node(self, x: Tensor) -> bool:
        """Whether the node can carry this tensor, and the library has no better way."""
        return x.device.type == "cpu" or (x.is_cuda and not self.carries_cuda)

    def _carries(self, x: Tensor, team: Team) -> bool:
        """Whether a collective of `x` does without a copy on the host."""
        return self.carries_cuda or self._node_of(team, x) is not None

    # Messages

    def _post_by_path(self, sends: Sequence[PeerTensor], receives: Sequence[PeerTensor]) -> Request:
        """Post messages: between workers of this machine through shared memory, others through the library."""
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

    def _post_staged(self, sends: Sequence[PeerTensor], receives: Sequence[PeerTensor]) -> Request:
        """Post messages through the library, staging CUDA tensors through the host where it cannot carry them."""
        if self.carries_cuda or not any(tensor.is_cuda for _, tensor in (*sends, *receives)):
            return self._post(sends, receives)
        hosts = [(peer, wire_dtypes.host_buffer(tensor)) for peer, tensor in receives]
        staged = [(peer, wire_dtypes.to_host(tensor)) for peer, tensor in sends]
        return Unstaging(self._post(staged, hosts), [(t, h) for (_, t), (_, h) in zip(receives, hosts, strict=True)])

    # Sums

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
        """Start the sum of a float `x` whose numbers are sent as the narrower dtype `wire`."""
        flat = x.view(-1)
        return Begun(ChunkedSum(flat, flat, team, self.rank, self._post_by_path, wire), self._begun)

    def _sum_into(self, total: Tensor, x: Tensor, team: Team) -> None:
        """Write the sum of `x`, which may have any strides, into the contiguous `total`."""
        node = self._node_of(team, total)
        if node is None or not total.numel():
            self._all_sum_into(total, x, team)
        else:
            node.all_sum(total, x if x.dtype == total.dtype and x.is_contiguous() else total.copy_(x), team)

    def _sum_at(self, total: Tensor, x: Tensor, root: int, team: Team) -> None:
        if self._node_of(team, total) is not None:
            self._sum_into(total, x, team)
        else:
            self._sum_to(total.copy_(x), root, team)

    # What a transport implements, for contiguous tensors on the host, and on a device if `carries_cuda`

    @abstractmethod
    def _post(self, sends: Sequence[PeerTensor], receives: Sequence[PeerTensor]) -> Request: ...

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
