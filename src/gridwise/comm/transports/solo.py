"""The transport of a process started without a launcher: a single worker, on which everything works."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ..messages.requests import NOTHING, Request
from .base import PeerTensor, Team, Transport


class SoloTransport(Transport):
    """A world of one worker."""

    name = "solo"
    carries_cuda = True
    carries_meta = True
    survives_forks = True

    def __init__(self) -> None:
        super().__init__(rank=0, size=1)

    def abort(self, code: int = 1) -> None:
        os._exit(code)

    def _post(self, sends: Sequence[PeerTensor], receives: Sequence[PeerTensor]) -> Request:
        assert not sends, "a single worker has no peers"
        assert not receives, "a single worker has no peers"
        return NOTHING

    def _all_sum(self, x: Tensor, team: Team) -> None:
        return None

    def _sum_to(self, x: Tensor, root: int, team: Team) -> None:
        return None

    def _copy_from(self, x: Tensor, root: int, team: Team) -> None:
        return None

    def _all_max(self, values: np.ndarray, team: Team) -> None:
        return None

    def _gather_bytes(self, data: bytes, sizes: list[int], team: Team) -> list[bytes]:
        return [data]
