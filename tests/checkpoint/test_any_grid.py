"""Saved on n workers, loaded on m: every layout to every other, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import line, split
from crew import crew
from torch import Tensor

from gridwise import checkpoint
from gridwise.checkpoint.reading import open_file
from gridwise.checkpoint.reading.open_file import DataFile
from gridwise.errors import CheckpointDamaged
from gridwise.grid import Grid, Layout
from gridwise.partition import Partition

COUNTS = range(1, 7)


def wholes() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(5)
    return {
        "even": torch.randn(12, 4, generator=g),
        "uneven": torch.randn(7, 3, generator=g, dtype=torch.float64),
        "fewer rows than workers": torch.randn(2, 5, generator=g).to(torch.bfloat16),
        "columns": torch.randn(5, 11, generator=g),
        "two dims": torch.arange(13 * 9, dtype=torch.int64).view(13, 9),
        "cut at will": torch.randn(10, 2, 3, generator=g, dtype=torch.complex128),
        "on one worker": torch.randn(4, generator=g),
        "with a replica": torch.randn(6, 2, generator=g),
        "everywhere": torch.randn(9, 2, generator=g),
        "a number": torch.tensor(3.5, dtype=torch.float64),
        "nothing": torch.empty(0, 3),
        "many chunks": torch.randn(700, 1000, generator=g),
        "mask": torch.rand(17, generator=g) > 0.5,
    }


def layouts(P: Partition, choice: random.Random) -> dict[str, Layout]:
    """Different on every call, the same on all workers of one call."""
    n = P.size
    factors = choice.choice([(a, n // a) for a in range(1, n + 1) if n % a == 0])
    cuts = (0, *sorted(choice.randint(0, 10) for _ in range(n - 1)), 10)
    one = choice.choice(P.ranks)
    return {
        "even": line(P, (12, 4)),
        "uneven": line(P, (7, 3)),
        "fewer rows than workers": line(P, (2, 5)),
        "columns": line(P, (5, 11), dim=1),
        "two dims": Layout.balanced(Grid(P.ranks, factors), (13, 9)),
        "cut at will": line(P, (10, 2, 3), cuts=cuts),
        "on one worker": Layout.balanced(Grid((one,), (1,)), (4,)),
        "with a replica": Layout.balanced(Grid((P.ranks[-1],), (1, 1)), (6, 2)),
        "many chunks": Layout.balanced(Grid(P.ranks, choice.choice([factors, factors[::-1]])), (700, 1000)),
    }


def state_of(P: Partition, values: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    found = layouts(P, random.Random(seed))
    rank = P.transport.rank
    return {
        key: whole.clone()
        if key not in found
        else split(whole, found[key], rank, replica_of=P.ranks[-1] if key == "with a replica" else None)
        for key, whole in values.items()
    }


def blank(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: torch.full_like(value, 1) for key, value in values.items()}


def check_move(path: Path, n: int, m: int, seed: int) -> None:
    crew(n, lambda P: checkpoint.save(path, state_of(P, wholes(), seed), P))

    def loads(P: Partition) -> None:
        state = state_of(P, blank(wholes()), seed + 1)
        checkpoint.load(path, state, P)
        expected = state_of(P, wholes(), seed + 1)
        for key, value in expected.items():
            assert torch.equal(state[key].detach(), value.detach()), key

    crew(m, loads)


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("m", COUNTS)
def test_any_number_of_workers_to_any_other(tmp_path: Path, n: int, m: int) -> None:
    check_move(tmp_path / "c", n, m, seed=10 * n + m)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_many_random_layouts(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    check_move(tmp_path / "c", choice.randint(1, 6), choice.randint(1, 6), seed)


@pytest.mark.parametrize("n", [1, 3])
def test_a_plain_sequential_program_reads_it(tmp_path: Path, n: int) -> None:
    crew(n, lambda P: checkpoint.save(tmp_path / "c", state_of(P, wholes(), 1), P))
    for key, value in checkpoint.load(tmp_path / "c").items():
        assert torch.equal(value, wholes()[key]), key
        assert value.dtype == wholes()[key].dtype


def test_replicas_are_written_once_and_spread(tmp_path: Path) -> None:
    state = {f"t{i}": torch.full((64, 64), float(i)) for i in range(8)} | {"large": torch.zeros(1200, 2000)}
    crew(4, lambda P: checkpoint.save(tmp_path / "c", {k: v.clone() for k, v in state.items()}, P))
    manifest = checkpoint.verify(tmp_path / "c")
    nbytes = sum(v.numel() * 4 for v in state.values())
    assert nbytes < manifest.nbytes < nbytes + 20_000
    sizes = [file.size for file in manifest.files]
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) < 40_000
    assert len(manifest.tensors["large"].blocks) == 4


def test_each_worker_reads_only_the_chunks_that_hold_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randn(4096, 1024)  # 16 MiB
    crew(1, lambda P: checkpoint.save(tmp_path / "c", {"w": whole.clone()}, P))
    looked_at: list[int] = []
    read: list[int] = []
    real_bytes, real_read = DataFile.bytes, DataFile.read

    def counting_bytes(self: DataFile, offset: int, size: int, may_map: bool) -> Any:
        looked_at.append(size)
        return real_bytes(self, offset, size, may_map)

    def counting_read(self: DataFile, offset: int, places: list[Any]) -> int:
        read.append(sum(map(len, places)))
        return real_read(self, offset, places)

    monkeypatch.setattr(DataFile, "bytes", counting_bytes)
    monkeypatch.setattr(DataFile, "read", counting_read)
    monkeypatch.setattr(DataFile, "read_cached", lambda *_: False)  # or it would be read there

    def loads(P: Partition) -> None:
        target = split(torch.zeros(4096, 1024), line(P, (4096, 1024)), P.transport.rank)
        checkpoint.load(tmp_path / "c", {"w": target}, P)
        assert torch.equal(target.detach(), whole[line(P, (4096, 1024)).block(P.transport.rank).slices])

    crew(4, loads)
    assert sum(looked_at) == 16 << 20  # each byte is checked once, by the one that needs it,
    assert sum(read) == 16 << 20  # and then read once, into place


def test_the_same_whether_the_system_holds_the_file_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped where it lies, or read: the values are right, and damage is noticed before anything is changed."""
    whole = {"large": torch.randn(700, 900), "small": torch.randn(5)}
    checkpoint.save(tmp_path / "c", whole)
    (file,) = (tmp_path / "c").glob("data-*/*.safetensors")

    def loaded() -> dict[str, torch.Tensor]:
        into = {key: torch.zeros_like(x) for key, x in whole.items()}
        try:
            checkpoint.load(tmp_path / "c", into)
        except CheckpointDamaged:
            assert not any(x.any() for x in into.values())
            raise
        return into

    def ways() -> Iterator[None]:
        for in_memory in (True, False):
            monkeypatch.setattr(open_file, "is_cached", lambda *_, known=in_memory: known)
            yield
        monkeypatch.setattr(open_file, "is_cached", lambda *_: True)
        monkeypatch.setattr(open_file, "POPULATE_READ", -1)  # a system that does not know it
        yield

    for _ in ways():
        assert all(torch.equal(loaded()[key], x) for key, x in whole.items())
    with file.open("r+b") as opened:
        opened.seek(-1, 2)
        opened.write(b"!")
    monkeypatch.undo()
    for _ in ways():
        with pytest.raises(CheckpointDamaged, match="checksum"):
            loaded()
