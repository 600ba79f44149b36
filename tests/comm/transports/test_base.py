"""The public methods of a transport, where the path of the data must not matter."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

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


@workers(2)
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_job_can_be_ended_from_a_worker_that_has_closed_its_output(name: str) -> None:
    codes: list[int] = []
    worker = SimpleNamespace(_world=SimpleNamespace(Abort=codes.append), _ours=list)
    with open(os.devnull, "w") as stream:
        pass  # closed: unlike a file, a closed StringIO can be flushed
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os._exit", codes.append)
        patched.setattr(sys, name, stream)
        type(gridwise.world().transport).abort(worker, 3)  # type: ignore[arg-type]
    assert codes == [3]
