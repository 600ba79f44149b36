"""What is special to MPI among the transports."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.errors import MismatchError
from gridwise.testing import workers


@workers(2, transports=("mpi",))
def test_a_message_that_is_too_short_is_not_taken_for_the_one_that_is_awaited() -> None:
    """MPI fills a part of the memory and says nothing."""
    transport = gridwise.world().transport
    rank, other = transport.rank, 1 - transport.rank
    short, long = torch.full((3,), 1.0), torch.full((5,), 2.0)
    if rank:
        transport.exchange([(other, short)], [])
        transport.exchange([(other, long)], [])
        return
    into = torch.zeros(5)
    with pytest.raises(
        MismatchError, match="worker 1 sent a message of 12 bytes, where this worker waits for one of 20"
    ):
        transport.exchange([], [(other, into)])
    transport.exchange([], [(other, into)])
    torch.testing.assert_close(into, long)
