"""The public methods of a transport, where the path of the data must not matter."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.testing import workers


@workers(2)
@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int16, torch.complex128],
)
def test_gathered_rows_have_the_same_bits_through_shared_memory_and_through_the_library(monkeypatch, dtype, is_shared):
    transport = gridwise.world().transport
    if not is_shared:
        monkeypatch.setattr(transport, "node", None)
    rows = torch.tensor([[-0.0, 1.0, 0.0], [0.0, -0.0, 1.0]], dtype=torch.float64).to(dtype)
    for size in (3, 0):
        found = transport.all_gather(rows[transport.rank, :size].clone(), transport.everyone)
        assert (found.dtype, found.shape) == (dtype, (2, size))
        assert torch.equal(found.contiguous().view(torch.uint8), rows[:, :size].contiguous().view(torch.uint8))
