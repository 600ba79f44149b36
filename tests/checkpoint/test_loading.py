"""All workers load the same save, whatever each of them has seen at the path, and meet as rarely as that allows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import crew, crew_errors, meetings_of

from gridwise import checkpoint
from gridwise.checkpoint import loading
from gridwise.checkpoint.parse import read_manifest_bytes
from gridwise.errors import CheckpointDamaged, CheckpointNotFound
from gridwise.partition import Partition

WORKERS = 3


def state(P: Partition, value: float) -> dict[str, Any]:
    return {"x": torch.full((4,), value), "own": checkpoint.PerWorker(torch.full((2,), value + P.rank))}


def saved(path: Path, value: float) -> bytes:
    crew(WORKERS, lambda P: checkpoint.save(path, state(P, value), P))
    return read_manifest_bytes(path)


def seen_first(monkeypatch: pytest.MonkeyPatch, late: int, sees: Callable[[], bytes]) -> Callable[[Partition], None]:
    """The worker `late` sees something else when it looks for a manifest the first time."""
    ranks: dict[int, int] = {}
    looked: list[int] = []

    def reads(path: Path) -> bytes:
        rank = ranks[threading.get_ident()]
        looked.append(rank)
        return sees() if rank == late and looked.count(late) == 1 else read_manifest_bytes(path)

    monkeypatch.setattr(loading, "read_manifest_bytes", reads)
    return lambda P: ranks.__setitem__(threading.get_ident(), P.rank)


def nothing() -> bytes:
    raise CheckpointNotFound("nothing is there yet")


@pytest.mark.parametrize("late", range(WORKERS))
@pytest.mark.parametrize("sees", ["the one before", "another one", "nothing", "the start of it"])
def test_a_worker_that_sees_another_manifest_loads_what_all_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int, sees: str
) -> None:
    """The first worker's counts; of the one before even the data may be gone."""
    path = tmp_path / "c"
    other = saved(tmp_path / "d", 7.0)
    before = saved(path, 1.0)
    now = saved(path, 2.0)
    seen = {"the one before": lambda: before, "another one": lambda: other, "the start of it": lambda: now[:300]}
    notes = seen_first(monkeypatch, late, seen.get(sees, nothing))

    def loads(P: Partition) -> None:
        notes(P)
        into = state(P, 0.0)
        checkpoint.load(path, into, P)
        assert torch.equal(into["x"], torch.full((4,), 2.0))
        assert torch.equal(into["own"].value, torch.full((2,), 2.0 + P.rank))

    crew(WORKERS, loads)


def test_what_no_worker_sees_is_missing_for_all(tmp_path: Path) -> None:
    errors = crew_errors(WORKERS, lambda P: checkpoint.load(tmp_path / "c", state(P, 0.0), P))
    assert {type(error) for error in errors} == {CheckpointNotFound}
    assert len({str(error) for error in errors}) == 1


@pytest.mark.parametrize("content", [b"", b"{", b'{"format":"gridwise-checkpoint","format_version":1,\n'])
def test_a_manifest_that_is_none_is_refused_by_all(tmp_path: Path, content: bytes) -> None:
    saved(tmp_path / "c", 1.0)
    (tmp_path / "c" / "manifest.json").write_bytes(content)
    errors = crew_errors(WORKERS, lambda P: checkpoint.load(tmp_path / "c", state(P, 0.0), P))
    assert {type(error) for error in errors} == {CheckpointDamaged}
    assert len({str(error) for error in errors}) == 1


def test_a_load_is_three_meetings_and_a_save_three(tmp_path: Path) -> None:
    """Loading: all have read and planned, checked, filled. Saving: all have started, written; it is committed."""

    def meetings(P: Partition, call: Callable[..., Any]) -> int:
        with meetings_of(P) as met:
            call(tmp_path / "c", state(P, 1.0), P)
        return len(met)

    assert crew(2, lambda P: [meetings(P, checkpoint.save), meetings(P, checkpoint.load)]) == [[3, 3]] * 2
