"""States that move, have no memory, or give copies: saved and loaded right, or refused; and saves that cross each other."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crew import crew, crew_errors

import gridwise
from gridwise import checkpoint
from gridwise.checkpoint.format.manifest_parser import read_manifest
from gridwise.checkpoint.reading import loading, reader
from gridwise.checkpoint.writing import folder
from gridwise.errors import CheckpointError, CheckpointMismatch
from gridwise.partition import Partition


def test_an_empty_tensor_of_each_worker_in_the_background(tmp_path: Path) -> None:
    state = {"r": checkpoint.PerWorker({"empty": torch.ones(0), "y": torch.ones(5)}), "z": torch.ones(2, 0)}
    checkpoint.async_save(tmp_path / "c", state).wait()
    checkpoint.verify(tmp_path / "c")
    found = checkpoint.load(tmp_path / "c")
    assert found["z"].shape == (2, 0)
    assert [part["empty"].shape for part in found["r"]] == [(0,)]


def test_saves_of_different_teams_in_the_background_do_not_share_memory(tmp_path: Path) -> None:
    def body(P: Partition) -> None:
        own = {"own": checkpoint.PerWorker(torch.full((1000,), 1.0 + P.rank))}
        pending = [checkpoint.async_save(tmp_path / "all", own, P)]
        if P.rank == 0:
            alone = P.create_partition_inclusive([0])
            pending.append(checkpoint.async_save(tmp_path / "one", {"x": torch.full((1000,), 7.0)}, alone))
        else:
            P.create_partition_inclusive([0])
        for each in pending:
            each.wait()

    assert crew_errors(2, body) == [None, None]
    assert [float(part.unique()) for part in checkpoint.load(tmp_path / "all")["own"]] == [1.0, 2.0]
    assert float(checkpoint.load(tmp_path / "one")["x"].unique()) == 7.0


class Moving:
    """Its `state_dict` moves the memory of a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def state_dict(self) -> dict[str, Any]:
        for parameter in self.module.parameters():
            parameter.data = parameter.data.clone()
        self.taken = torch.zeros(200, 1000)
        return {"decay": 0.9}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_memory_that_moves_while_a_state_is_looked_at_is_noticed(tmp_path: Path) -> None:
    model = torch.nn.Linear(1000, 200, bias=False)
    state, weight = {"model": model, "average": Moving(model)}, model.weight.detach().clone()
    for save in (checkpoint.save, checkpoint.async_save):
        try:
            pending = save(tmp_path / "c", state)
            if pending is not None:
                pending.wait()
        except CheckpointMismatch:
            continue
        assert torch.equal(checkpoint.load(tmp_path / "c")["model"]["weight"], weight)
    checkpoint.save(tmp_path / "d", {"model": {"weight": weight}, "average": {"decay": 0.9}})
    with pytest.raises(CheckpointMismatch, match="moves the memory"):
        checkpoint.load(tmp_path / "d", state)


def tensors_without_memory() -> list[torch.Tensor]:
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    with gridwise.fake.fake_mode():
        fake = torch.ones(4)
    return [fake, torch._efficientzerotensor((4,)), freed]


@pytest.mark.parametrize("which", range(3), ids=["fake", "zero", "freed"])
def test_a_tensor_without_memory_is_refused(tmp_path: Path, which: int) -> None:
    checkpoint.save(tmp_path / "c", {"x": torch.ones(4)})
    for call in (checkpoint.save, checkpoint.async_save, checkpoint.load):
        with pytest.raises((CheckpointError, gridwise.errors.GridwiseError)):
            call(tmp_path / "c", {"x": tensors_without_memory()[which]})
    assert torch.equal(checkpoint.load(tmp_path / "c")["x"], torch.ones(4))


def test_a_module_that_gives_copies_of_its_state_is_not_filled_in_vain(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    checkpoint.save(tmp_path / "c", {"model": model})
    model.register_state_dict_post_hook(
        lambda module, state, prefix, meta: state.update(weight=state["weight"].clone())
    )
    with pytest.raises(CheckpointMismatch, match="gives copies of 'weight'"):
        checkpoint.load(tmp_path / "c", {"model": model})


def test_a_file_that_changes_between_the_check_and_the_fill_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path / "c", {"x": torch.arange(1 << 20, dtype=torch.float32)})
    (file,) = (tmp_path / "c").glob("data-*/*.safetensors")
    header, fill = read_manifest(tmp_path / "c").files[0].header, reader.Reader.fill

    def changed_first(self: Any, *args: Any) -> Any:
        status = file.stat()
        with file.open("r+b") as handle:
            handle.seek(header + 4000)
            handle.write(b"\xff" * 400)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # as if nothing had happened
        return fill(self, *args)

    monkeypatch.setattr(reader.Reader, "fill", changed_first)
    with pytest.raises(CheckpointError, match="'x'"):
        checkpoint.load(tmp_path / "c", {"x": torch.zeros(1 << 20)})


def test_a_checkpoint_that_is_removed_while_it_is_opened_is_an_error_on_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path / "c", {"x": torch.ones(10)})
    opened, both = loading.Reader, threading.Barrier(2, timeout=20)

    def removed_for_one(*args: Any) -> Any:
        if threading.current_thread().name == "first":
            found = opened(*args)
            both.wait()
            both.wait()
            return found
        both.wait()
        folder.remove_checkpoint(tmp_path / "c")
        both.wait()
        return opened(*args)

    monkeypatch.setattr(loading, "Reader", removed_for_one)

    def body(P: Partition) -> str:
        threading.current_thread().name = "first" if P.rank == 0 else "second"
        try:
            checkpoint.load(tmp_path / "c", {"x": torch.zeros(10)}, P)
        except CheckpointError as error:
            return type(error).__name__
        return "no error"

    one, other = crew(2, body)
    assert one == other != "no error"


def test_a_save_in_the_background_without_a_thread_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        checkpoint.async_save(tmp_path / "c", {"x": torch.ones(1 << 20)}).wait()
    assert torch.equal(checkpoint.load(tmp_path / "c")["x"], torch.ones(1 << 20))


def test_shared_memory_is_filled_if_what_was_saved_agrees(tmp_path: Path) -> None:
    whole = torch.arange(600_000.0).reshape(3, -1)  # rows of less than a chunk, all of them of more
    tied = torch.ones(5)
    saved = {"row": whole[1], "whole": whole, "last": whole[2, 5:], "a": tied, "b": tied}
    checkpoint.save(tmp_path / "c", saved)
    target, other = torch.zeros(3, 200_000), torch.zeros(5)
    into = {"row": target[1], "whole": target, "last": target[2, 5:], "a": other, "b": other}
    checkpoint.load(tmp_path / "c", into)
    assert torch.equal(target, whole)
    assert torch.equal(other, tied)


@pytest.mark.parametrize(
    "change",
    [{"row": torch.ones(200_000)}, {"last": torch.ones(199_995)}, {"b": torch.zeros(5)}],
    ids=["a row", "an end", "tied"],
)
def test_shared_memory_for_which_different_values_were_saved_is_refused(
    tmp_path: Path, change: dict[str, torch.Tensor]
) -> None:
    whole = torch.arange(600_000.0).reshape(3, -1)
    saved = {"row": whole[1], "whole": whole, "last": whole[2, 5:], "a": torch.ones(5), "b": torch.ones(5)}
    target, other = torch.full((3, 200_000), 9.0), torch.full((5,), 9.0)
    into = {"row": target[1], "whole": target, "last": target[2, 5:], "a": other, "b": other}

    def body(P: Partition) -> None:
        checkpoint.save(tmp_path / "c", {**saved, **change}, P)
        apart = {key: value.clone() for key, value in saved.items()}
        checkpoint.load(tmp_path / "c", into if P.rank == 1 else apart, P)

    errors = crew_errors(2, body)
    assert len({str(error) for error in errors}) == 1
    with pytest.raises(CheckpointMismatch, match=r"worker 1: '.*' and '.*' share memory in `into`"):
        raise errors[0]  # type: ignore[misc]
    assert target.unique().tolist() == other.unique().tolist() == [9.0]


def test_a_big_endian_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path / "c", {"x": torch.ones(2)})
    monkeypatch.setattr(sys, "byteorder", "big")
    for call in (checkpoint.save, checkpoint.async_save, checkpoint.load):
        with pytest.raises(CheckpointError, match="this machine is big-endian"):
            call(tmp_path / "c", {"x": torch.zeros(2)})


def test_a_masked_array_is_refused(tmp_path: Path) -> None:
    masked = np.ma.masked_array(np.arange(3.0), mask=[False, True, False])
    for call in (checkpoint.save, checkpoint.async_save):
        with pytest.raises(CheckpointMismatch, match="'in/m' is a masked array"):
            call(tmp_path / "c", {"in": {"m": masked}})
    checkpoint.save(tmp_path / "c", {"m": masked.data, "mask": masked.mask})
    with pytest.raises(CheckpointMismatch, match="'m' is a masked array"):
        checkpoint.load(tmp_path / "c", {"m": masked})
    assert checkpoint.load(tmp_path / "c")["mask"].tolist() == [False, True, False]
