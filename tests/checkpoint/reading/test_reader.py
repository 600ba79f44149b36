"""Reading with several threads: the same values and the same errors as with one, in memory that does not grow with them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import gridwise
from gridwise import checkpoint
from gridwise.checkpoint.format.manifest_parser import read_manifest
from gridwise.checkpoint.reading import open_file, reader
from gridwise.checkpoint.reading.chunk_reads import ChunkReads, all_reads
from gridwise.checkpoint.reading.reader import MEMORY, MOST_THREADS, Reader
from gridwise.errors import CheckpointDamaged, CheckpointMismatch

COUNTS = [1, 2, 3, MOST_THREADS, 64]
ELEMENTS = (9 << 20) // 4 + 5


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, Tensor]:
    """About 60 MiB, in chunks that are whole and not."""
    state = {f"t{i}": torch.arange(ELEMENTS, dtype=torch.float32) + i for i in range(6)}
    state["wide"] = torch.randn(1000, 1001)
    checkpoint.save(tmp_path / "c", state)
    return state


def cores_are(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(reader, "LEAST_THREADS", 1)
    monkeypatch.setattr(gridwise.world().transport, "cores", count)


def empty(saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """Room for what was saved, of which one tensor is no plain memory."""
    into = {key: torch.zeros_like(x) for key, x in saved.items()}
    into["wide"] = torch.zeros(1001, 1000).T
    return into


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("mapped", [True, False])
def test_values_are_those_that_were_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: dict[str, Tensor], count: int, mapped: bool
) -> None:
    cores_are(monkeypatch, count)
    if not mapped:
        monkeypatch.setattr(open_file, "NOWAIT", None)
    into = empty(saved)
    checkpoint.load(tmp_path / "c", into)
    assert all(torch.equal(into[key], x) for key, x in saved.items())
    new = checkpoint.load(tmp_path / "c")
    assert all(torch.equal(new[key], x) for key, x in saved.items())


@pytest.mark.parametrize("mapped", [True, False])
def test_errors_are_the_same_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: dict[str, Tensor], mapped: bool
) -> None:
    (path,) = (tmp_path / "c").glob("data-*/w0.safetensors")
    size = path.stat().st_size
    with open(path, "r+b") as file:
        for place in range(size // 20, size, size // 11):  # more of them than are named
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))
    if not mapped:
        monkeypatch.setattr(open_file, "NOWAIT", None)
    texts = set()
    for count in COUNTS:
        cores_are(monkeypatch, count)
        into = empty(saved)
        with pytest.raises(CheckpointDamaged) as raised:
            checkpoint.load(tmp_path / "c", into)
        texts.add(str(raised.value))
        assert not any(x.any() for x in into.values())
    assert len(texts) == 1
    assert "... and 3 more" in texts.pop()


@pytest.mark.parametrize("count", [2, 3, MOST_THREADS])
def test_as_many_threads_as_cores_work_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: dict[str, Tensor], count: int
) -> None:
    cores_are(monkeypatch, count)
    for name in ("_check_span", "_fill_span"):
        together = threading.Barrier(count, timeout=20)
        met = threading.local()
        work = getattr(Reader, name)

        def first_meet(
            self: Reader, span: ChunkReads, together: Any = together, met: Any = met, work: Any = work
        ) -> list[str]:
            if not hasattr(met, "once"):
                met.once = True
                together.wait()
            return work(self, span)

        monkeypatch.setattr(Reader, name, first_meet)
    into = empty(saved)
    checkpoint.load(tmp_path / "c", into)
    assert all(torch.equal(into[key], x) for key, x in saved.items())


@pytest.mark.parametrize("count", COUNTS)
def test_all_threads_together_have_so_much_memory(tmp_path: Path, saved: dict[str, Tensor], count: int) -> None:
    manifest = read_manifest(tmp_path / "c")
    with Reader(tmp_path / "c", manifest, all_reads(manifest), count) as found:
        assert found.threads == max(2, min(count, MOST_THREADS))
        assert found.threads * max(found.reads.cut(span).extent for span in found.spans) <= MEMORY


def test_small_tensors_have_one_thread(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", {f"t{i}": torch.zeros(100) for i in range(1000)})
    manifest = read_manifest(tmp_path / "c")
    with Reader(tmp_path / "c", manifest, all_reads(manifest), 16) as found:
        assert found.threads == 1


def test_shared_memory_is_compared_in_files_without_checksums(tmp_path: Path) -> None:
    ones = torch.ones(3)
    safetensors.torch.save_file({"a": torch.zeros(3), "b": ones, "c": ones.clone()}, tmp_path / "m.safetensors")
    shared = torch.full((3,), 9.0)
    with pytest.raises(CheckpointMismatch, match="'a' and 'b' share memory in `into`"):
        checkpoint.load(tmp_path / "m.safetensors", {"a": shared, "b": shared})
    assert shared.tolist() == [9.0, 9.0, 9.0]
    checkpoint.load(tmp_path / "m.safetensors", {"b": shared, "c": shared})
    assert torch.equal(shared, ones)
