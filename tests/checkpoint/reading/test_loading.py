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
from gridwise.checkpoint.format.manifest_parser import read_manifest_bytes
from gridwise.checkpoint.reading import loading
from gridwise.checkpoint.reading.reader import Reader
from gridwise.errors import CheckpointDamaged, CheckpointMismatch, CheckpointNotFound, CheckpointWriteFailed
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

    monkeypatch.setattr(loading, "read_contents_bytes", reads)
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


def meetings(P: Partition, call: Callable[..., Any], *given: Any) -> int:
    with meetings_of(P) as met:
        call(*given, P)
    return len(met)


def test_a_load_is_two_meetings_and_a_save_three(tmp_path: Path) -> None:
    """Loading: all have read, planned and checked; filled. Saving: all have started, written; it is committed."""

    def both(P: Partition) -> list[int]:
        return [meetings(P, call, tmp_path / "c", state(P, 1.0)) for call in (checkpoint.save, checkpoint.load)]

    assert crew(2, both) == [[3, 2]] * 2


def uneven(P: Partition, value: float) -> dict[str, Any]:
    """The last worker has more than the others."""
    return {"own": checkpoint.PerWorker(torch.full((2 if P.rank < WORKERS - 1 else 200,), value + P.rank))}


def test_workers_meet_before_they_check_if_one_has_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then an error of one is heard by all before anybody has read for long."""
    path = tmp_path / "c"
    crew(WORKERS, lambda P: checkpoint.save(path, uneven(P, 1.0), P))
    monkeypatch.setattr(loading, "CHECK_BEFORE_VOTE", 100)
    checks: list[int] = []
    check = Reader.check
    monkeypatch.setattr(Reader, "check", lambda self: (checks.append(self.nbytes), check(self))[1])

    def loads(P: Partition) -> int:
        into = uneven(P, 0.0)
        met = meetings(P, checkpoint.load, path, into)
        assert torch.equal(into["own"].value, uneven(P, 1.0)["own"].value)
        return met

    assert crew(WORKERS, loads) == [3] * WORKERS
    assert sorted(checks) == [8, 8, 800]  # nobody twice


@pytest.mark.parametrize("soon", [0, 100, 1 << 20])
def test_damage_of_one_is_heard_by_all_before_anything_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soon: int
) -> None:
    path = tmp_path / "c"
    crew(WORKERS, lambda P: checkpoint.save(path, uneven(P, 1.0), P))
    (damaged,) = path.glob("data-*/w0.safetensors")
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    monkeypatch.setattr(loading, "CHECK_BEFORE_VOTE", soon)
    states: dict[int, dict[str, Any]] = {}

    def loads(P: Partition) -> None:
        states[P.rank] = uneven(P, 5.0)
        checkpoint.load(path, states[P.rank], P)

    errors = crew_errors(WORKERS, loads)
    assert {type(error) for error in errors} == {CheckpointDamaged}
    assert len({str(error) for error in errors}) == 1
    assert all((into["own"].value == 5.0 + rank).all() for rank, into in states.items())


@pytest.mark.parametrize("name", ["c", "m.safetensors"])
@pytest.mark.parametrize("kind", ["transposed", "converted"])
def test_two_names_of_a_tensor_that_is_filled_in_pieces(tmp_path: Path, name: str, kind: str) -> None:
    state = {"a": torch.rand(3, 2), "b": torch.ones(3, 2), "c": torch.ones(3, 2)}
    checkpoint.save(tmp_path / "c", state)
    checkpoint.convert(tmp_path / "c", tmp_path / "m.safetensors")
    shared = torch.full((2, 3), 9.0).T if kind == "transposed" else torch.full((3, 2), 9.0, dtype=torch.float64)
    for names in ("ab", "ba"):
        with pytest.raises(CheckpointMismatch, match="share memory in `into`"):
            checkpoint.load(tmp_path / name, dict.fromkeys(names, shared), cast=True)
    assert shared.unique().tolist() == [9.0]
    checkpoint.load(tmp_path / name, {"b": shared, "c": shared}, cast=True)
    assert torch.equal(shared.float(), state["b"])


@pytest.mark.parametrize("last", ["b", "nothing"])
def test_workers_with_different_paths_are_told_so(tmp_path: Path, last: str) -> None:
    for name in "ab":
        saved(tmp_path / name, ord(name))
    into = [torch.zeros(4) for _ in range(WORKERS)]

    def load(P: Partition) -> None:
        checkpoint.load(tmp_path / ("a" if P.rank < WORKERS - 1 else last), {"x": into[P.rank]}, P)

    errors = crew_errors(WORKERS, load)
    assert len({str(error) for error in errors}) == 1
    with pytest.raises(CheckpointMismatch, match=rf"different paths(.|\n)*worker 0: .*a\n(.|\n)*worker 2: .*{last}\n"):
        raise errors[0]  # type: ignore[misc]
    assert not any(x.any() for x in into)


def test_workers_with_file_systems_of_their_own_are_told_so(tmp_path: Path) -> None:
    for write in (checkpoint.save, checkpoint.export):
        errors = crew_errors(
            2, lambda P, write=write: write(tmp_path / f"{P.rank}" / "c", {"x": torch.ones(4), "y": torch.ones(4)}, P)
        )
        with pytest.raises(
            CheckpointWriteFailed, match=r"worker 1: there is no .*1/c(.|\n)*a file system that they share"
        ):
            raise errors[0]  # type: ignore[misc]
