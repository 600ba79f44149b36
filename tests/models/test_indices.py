"""Indices that an embedding has not: one error on all workers, at every call."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise.errors import PartitionError
from gridwise.testing import workers


class Words(nn.Module):
    """An embedding of what a function makes of the input."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.words, self.last = function, nn.Embedding(6, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.words(self.function(x)))


@workers(2, transports=("mpi",))
@pytest.mark.parametrize(
    "function",
    [lambda x: x, lambda x: x.t().long(), lambda x: x[:, :3]],
    ids=["own", "t", "part"],
)
def test_an_index_that_an_embedding_has_not(function: Callable[[Tensor], Tensor]) -> None:
    P = gridwise.world().create_cartesian_topology_partition([2, 1])
    sequential = Words(function)
    model, x = gridwise.distribute(copy.deepcopy(sequential), P), torch.arange(16).view(4, 4) % 5
    for wrong in (None, 9, -3, None, 7, None):  # on the last worker, planned at the first call and trusted later
        given = x.clone()
        if wrong is not None:
            given[3, 2] = wrong
            with pytest.raises(PartitionError, match=f"indices from 0 to 5, got {wrong}"):
                model(given[gridwise.local_slice(P, x.shape)])
            continue
        expected = sequential(given)
        y = model(given[gridwise.local_slice(P, x.shape)])
        torch.testing.assert_close(y, expected[gridwise.local_slice(model.P_y, expected.shape)])
