"""Tensors that lie close together are copied together: all of their bytes, and none that cannot be read."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from gridwise import checkpoint
from gridwise.checkpoint.writing.staging import CHUNK, GAP, coalesced


def column(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


@pytest.mark.parametrize(
    ("addresses", "sizes", "starts", "lengths"),
    [
        ([], [], [], []),
        ([64], [8], [64], [8]),
        ([64, 72, 80], [8, 8, 4], [64], [20]),
        ([64, 72 + GAP], [8, 8], [64], [16 + GAP]),
        ([64, 73 + GAP], [8, 8], [64, 73 + GAP], [8, 8]),
        ([80, 64, 72], [8, 8, 8], [80, 64], [8, 16]),
        ([64, 64], [8, 8], [64, 64], [8, 8]),
        ([64, 68], [8, 2], [64, 68], [8, 2]),
    ],
)
def test_runs(addresses: list[int], sizes: list[int], starts: list[int], lengths: list[int]) -> None:
    runs = coalesced(column(*addresses), column(*sizes), np.ones(len(sizes), dtype=np.bool_))
    assert runs.starts.tolist() == starts
    assert runs.sizes.tolist() == lengths
    assert (runs.starts[runs.which] + runs.before).tolist() == addresses


def test_those_that_may_not_join_are_runs_by_themselves() -> None:
    addresses, sizes = column(64, 72, 80, 88, 0, 0, 96), column(8, 8, 8, 8, 5, 0, 8)
    runs = coalesced(addresses, sizes, np.array([True, True, False, True, False, False, True]))
    assert runs.firsts.tolist() == [0, 2, 3, 4, 5, 6]
    assert runs.sizes.tolist() == [16, 8, 8, 5, 0, 8]
    assert runs.before.tolist() == [0, 8, 0, 0, 0, 0, 0]


def test_what_lies_between_lies_in_pages_of_its_neighbours() -> None:
    choice = random.Random(5)
    for _ in range(200):
        sizes = [choice.randrange(1, 3000) for _ in range(8)]
        gaps = [choice.choice([0, 1, 64, GAP - 1, GAP, GAP + 1, 5000]) for _ in range(8)]
        addresses = (np.cumsum(sizes) + np.cumsum(gaps) - sizes + choice.randrange(1, 1 << 20)).tolist()
        own = {
            byte // 4096 for a, n in zip(addresses, sizes, strict=True) for byte in (*range(a, a + n, 4096), a + n - 1)
        }
        runs = coalesced(column(*addresses), column(*sizes), np.ones(8, dtype=np.bool_))
        for start, size in zip(runs.starts.tolist(), runs.sizes.tolist(), strict=True):
            assert {byte // 4096 for byte in (*range(start, start + size, 4096), start + size - 1)} <= own


def test_tensors_close_together_far_apart_and_one_over_the_other_are_saved_as_they_are(tmp_path: Path) -> None:
    memory = torch.arange(4 * CHUNK, dtype=torch.int32)
    state = {
        "a": memory[0:10],
        "close by": memory[12:40].view(4, 7),
        "next to it": memory[40:41],
        "over it": memory[30:50],
        "before": memory[2:4],
        "far": memory[5000:5100],
        "large": memory[5100 : 5101 + CHUNK],
        "after it": memory[5101 + CHUNK : 5110 + CHUNK],
        "turned": memory[6000:6006].view(2, 3).t(),
        "elsewhere": torch.ones(3, dtype=torch.float64),
        "nothing": torch.ones(0),
        "last": memory[-3:],
    }
    expected = {key: x.clone() for key, x in state.items()}
    for given in (state, {"all": {key: state[key] for key in state if key not in ("turned", "nothing")}}):
        pending = checkpoint.async_save(tmp_path / "c", given)
        assert pending is not None
        memory.zero_()
        pending.wait()
        memory.copy_(torch.arange(4 * CHUNK, dtype=torch.int32))
        found = checkpoint.load(tmp_path / "c")
        for key, x in (found.get("all") or found).items():
            assert torch.equal(x, expected[key]), key


def test_what_lies_between_is_not_saved(tmp_path: Path) -> None:
    memory = torch.zeros(1000, dtype=torch.uint8)
    memory[100:120] = torch.frombuffer(bytearray(b"nobody else's affair"), dtype=torch.uint8)
    checkpoint.async_save(tmp_path / "c", {"x": memory[:100], "y": memory[120:]}).wait()
    assert not any(b"nobody" in file.read_bytes() for file in (tmp_path / "c").rglob("*") if file.is_file())
    assert sum(x.nbytes for x in checkpoint.load(tmp_path / "c").values()) == 980
