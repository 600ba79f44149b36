"""The same names, shapes and values on all workers: told by one number, spelt out only where it differs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import crew, crew_errors, meetings_of

from gridwise import checkpoint
from gridwise.checkpoint.state import flatten as states
from gridwise.checkpoint.state import same_structure
from gridwise.checkpoint.state.flatten import Flat, flatten
from gridwise.errors import CheckpointMismatch
from gridwise.partition import Partition


@pytest.mark.parametrize("in_groups", [True, False])
def test_one_number_tells_states_apart(in_groups: bool) -> None:
    def number_of(state: Any) -> int:
        return same_structure.number_of(flatten(state, in_groups=in_groups), Path("ck"))

    first = {"ab": torch.ones(2, 3), "c": torch.ones(4)}
    others: list[Any] = [
        {"a": torch.ones(2, 3), "bc": torch.ones(4)},
        {"c": torch.ones(4), "ab": torch.ones(2, 3)},
        {"ab": torch.ones(3, 2), "c": torch.ones(4)},
        {"ab": torch.ones(2), "c": torch.ones(3, 4)},
        {"ab": torch.ones(2, 3), "c": torch.ones(4).int()},
        {"ab": torch.ones(2, 3)},
        {**first, "n": 1},
        {**first, "n": checkpoint.PerWorker(1)},
        {"in": first},
    ]
    assert len(set(map(number_of, (first, *others)))) == 1 + len(others)
    assert number_of(first) == number_of({"ab": torch.zeros(2, 3), "c": torch.zeros(4)})
    assert number_of({"own": checkpoint.PerWorker(first)}) == number_of({"own": checkpoint.PerWorker(others[0])})


@pytest.mark.parametrize("odd", [0, 1])
def test_what_is_plain_on_one_worker_only_is_saved_alike(tmp_path: Path, odd: int) -> None:
    """One worker's "b" lies in columns: it is no plain tensor there, so the number differs, but what is stored does not."""

    def state(P: Partition) -> dict[str, Any]:
        b = torch.arange(6.0).reshape(2, 3)
        return {"in": {"a": torch.ones(3), "b": b.t().contiguous().t() if P.rank == odd else b}, "z": torch.zeros(2)}

    def body(P: Partition) -> None:
        pending = checkpoint.async_save(tmp_path / "c", state(P), P)
        assert pending is not None
        pending.wait()
        checkpoint.save(tmp_path / "d", state(P), P)

    crew(2, body)
    for name in ("c", "d"):
        found = checkpoint.load(tmp_path / name)
        assert torch.equal(found["in"]["b"], torch.arange(6.0).reshape(2, 3))
        assert torch.equal(found["z"], torch.zeros(2))


def test_names_that_differ_in_a_group_are_spelt_out(tmp_path: Path) -> None:
    def body(P: Partition) -> None:
        checkpoint.async_save(tmp_path / "c", {f"t{i + 7 * (i == 3) * P.rank}": torch.ones(2) for i in range(5)}, P)

    errors = crew_errors(3, body)
    assert len({str(error) for error in errors}) == 1
    with pytest.raises(CheckpointMismatch, match=r"'t3' on workers 1, 2: is missing"):
        raise errors[0]  # type: ignore[misc]
    assert not (tmp_path / "c").exists()


def test_a_stall_is_a_look_a_copy_and_one_meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spelt_by: set[str] = set()
    real = Flat.spell_out

    def spell_out(self: Flat) -> None:
        spelt_by.add(threading.current_thread().name)
        real(self)

    monkeypatch.setattr(states.Flat, "spell_out", spell_out)

    def body(P: Partition) -> int:
        own = checkpoint.PerWorker({f"t{i}": torch.full((2,), P.rank) for i in range(9)})
        with meetings_of(P) as met:
            pending = checkpoint.async_save(tmp_path / "c", {"same": {"a": torch.ones(3)}, "own": own}, P)
        assert pending is not None
        pending.wait()
        return len(met)

    assert crew(2, body) == [1, 1]
    assert all(name.startswith("gridwise-save") for name in spelt_by)
    assert [int(own["t3"][0]) for own in checkpoint.load(tmp_path / "c")["own"]] == [0, 1]


def test_workers_with_different_paths_are_told_so(tmp_path: Path) -> None:
    for write in (checkpoint.save, checkpoint.async_save):
        errors = crew_errors(3, lambda P, write=write: write(tmp_path / f"c{P.rank}", {"a": torch.ones(2)}, P))
        assert len({str(error) for error in errors}) == 1
        with pytest.raises(CheckpointMismatch, match=r"different paths(.|\n)*worker 1: .*c1"):
            raise errors[0]  # type: ignore[misc]
    assert not list(tmp_path.iterdir())


def test_a_module_that_was_saved_below_a_name_is_found_there(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    checkpoint.save(tmp_path / "c", {"model": model, "step": 3})
    with pytest.raises(CheckpointMismatch, match=r"saved below 'model': load\(path, into=\{'model': \.\.\.\}\)"):
        checkpoint.load(tmp_path / "c", into=model)
