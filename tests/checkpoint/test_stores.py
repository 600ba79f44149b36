"""Checkpoints in stores: as whole, as strict and as sparing as in files. `memory://` is one for the threads of a crew,
`local://` one that all processes of this machine see, reached as any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
import torch
from crew import crew, crew_errors
from fsspec.implementations.memory import MemoryFileSystem

import gridwise
from gridwise import checkpoint
from gridwise.checkpoint import Series
from gridwise.checkpoint.format.manifest import MANIFEST
from gridwise.checkpoint.store_path import StorePath, place_of
from gridwise.checkpoint.writing.store_saving import StoreSaving
from gridwise.errors import CheckpointDamaged, CheckpointError, CheckpointNotFound, CheckpointWriteFailed
from gridwise.partition import Partition
from gridwise.testing import workers


@pytest.fixture
def store() -> Iterator[str]:
    """The address of a folder that nobody else uses."""
    address = f"memory://{uuid4().hex}"
    yield address
    memory = fsspec.filesystem("memory")
    if memory.exists(address):
        memory.rm(address, recursive=True)


def contents(address: str) -> dict[str, bytes]:
    memory = fsspec.filesystem("memory")
    memory.invalidate_cache()
    return {name: memory.cat_file(name) for name in memory.find(address)}


def state(seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(300, 1000)
    return {"model": model, "optim": torch.optim.Adam(model.parameters()), "step": seed}


@pytest.mark.parametrize("scheme", ["memory", "local", "file"])
def test_round_trip(scheme: str, tmp_path: Path) -> None:
    path = f"{scheme}://{tmp_path}/run"
    saved, into = state(1), state(2)
    checkpoint.save(path, saved)
    assert checkpoint.load(path, into) is into
    assert into["step"] == 1
    assert torch.equal(into["model"].weight, saved["model"].weight)
    assert sorted(checkpoint.verify(path).tensors) == ["model/bias", "model/weight"]
    assert checkpoint.read(path)["step"] == 1
    assert path.replace("file://", "") in checkpoint.show(path).facts
    assert (tmp_path / "run" / MANIFEST).exists() == (scheme != "memory")


def test_a_save_replaces_the_one_before_and_its_data(store: str) -> None:
    for seed in (1, 2):
        checkpoint.save(store, state(seed))
    assert checkpoint.read(store)["step"] == 2
    assert len(contents(store)) == 2
    checkpoint.async_save(store, state(3)).wait()
    assert checkpoint.read(store)["step"] == 3
    assert len(contents(store)) == 2


def test_the_manifest_comes_last(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(store, state(1))
    before = contents(store)

    def refused(self: StorePath, data: bytes) -> None:
        assert self.name == MANIFEST
        assert len(contents(store)) == 3, "the new data is there, and the old"
        raise CheckpointError("the store has gone")

    monkeypatch.setattr(StorePath, "write_bytes", refused)
    with pytest.raises(CheckpointError, match=r"the store has gone\n  nothing was committed"):
        checkpoint.save(store, state(2))
    assert contents(store) == before
    assert checkpoint.read(store)["step"] == 1


def test_a_killed_save_leaves_the_one_before(store: str) -> None:
    checkpoint.save(store, state(1))
    half = place_of(store) / f"data-{'0' * 32}" / "w0.safetensors"
    half.write_bytes(b"half")
    assert checkpoint.read(store)["step"] == 1
    checkpoint.save(store, state(2))
    assert not half.exists()


def test_a_second_save_at_the_same_time_is_noticed(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = StoreSaving.commit
    other: list[StoreSaving] = []

    def found(path: StorePath, *, size: Any = StorePath.size) -> int | None:
        if not other and path.name == "w0.safetensors":
            other.append(StoreSaving(path.parent.parent))  # it takes the data there for a left-over
        return size(path)

    monkeypatch.setattr(StorePath, "size", found)
    with pytest.raises(CheckpointWriteFailed, match=r"one save at a time"):
        checkpoint.save(store, state(1))
    assert commit is StoreSaving.commit
    assert not contents(store)


def test_only_the_wanted_ranges_are_fetched(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(store, {"a": torch.zeros(1 << 20), "b": torch.ones(1 << 20), "c": torch.ones(2)})
    fetched = []
    cat = MemoryFileSystem.cat_file

    def noted(self: MemoryFileSystem, path: str, start: int | None = None, end: int | None = None, **kw: Any) -> bytes:
        data = cat(self, path, start=start, end=end, **kw)
        fetched.append(len(data))
        return data

    monkeypatch.setattr(MemoryFileSystem, "cat_file", noted)
    into = {"b": torch.zeros(1 << 20)}
    checkpoint.load(store, into)
    assert into["b"].sum() == 1 << 20
    assert 4 << 20 < sum(fetched) < (4 << 20) + 4096, "the tensor once, the manifest and the header"


def test_bytes_that_are_not_those_that_were_saved(store: str) -> None:
    checkpoint.save(store, state(1))
    (name,) = (name for name in contents(store) if name.endswith("w0.safetensors"))
    memory, whole = fsspec.filesystem("memory"), contents(store)[name]
    into = state(2)
    weight = into["model"].weight.clone()
    memory.pipe_file(name, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointDamaged, match=r"memory://.*\n.*tensor 'model/.*have the checksum"):
        checkpoint.load(store, into)
    memory.pipe_file(name, whole[:-1])
    with pytest.raises(CheckpointDamaged, match=f"has {len(whole) - 1} bytes"):
        checkpoint.load(store, into)
    memory.pipe_file(name, whole[:100] + b"~" + whole[101:])
    with pytest.raises(CheckpointDamaged, match="the header is not the one that was saved"):
        checkpoint.load(store, into)
    memory.rm(name)
    with pytest.raises(CheckpointDamaged, match="missing from memory://"):
        checkpoint.load(store, into)
    memory.pipe_file(f"{store}/{MANIFEST}", contents(f"{store}/{MANIFEST}").popitem()[1][:-30])
    with pytest.raises(CheckpointDamaged, match="cut short"):
        checkpoint.load(store, into)
    assert torch.equal(into["model"].weight, weight)


def test_a_store_that_fails_while_it_is_read(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(store, state(1))

    def broken(self: MemoryFileSystem, *_: Any, **__: Any) -> bytes:
        raise PermissionError("access denied")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", broken)
    for what in (checkpoint.load, checkpoint.read, checkpoint.verify):
        with pytest.raises(
            CheckpointError, match=rf"{store}.*cannot be read: PermissionError: access denied"
        ) as caught:
            what(store)
        assert not isinstance(caught.value, CheckpointNotFound)


def test_what_does_not_fit_into_what_is_kept_is_fetched_again(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridwise.checkpoint.reading.store_file.Kept.__init__.__defaults__", (100,))
    saved, into = state(1), state(2)
    checkpoint.save(store, saved)
    checkpoint.load(store, into)
    assert torch.equal(into["model"].weight, saved["model"].weight)


def test_a_series(store: str) -> None:
    series = Series(store, keep_last=2, keep_every=4)
    assert series.latest() is None
    with pytest.raises(CheckpointNotFound, match=f"{store} has no checkpoint"):
        series.load({})
    for step in range(7):
        series.save({"step": step}, step=step)
    assert series.steps() == [0, 4, 5, 6]
    into = {"step": 0}
    assert series.load(into) == into["step"] == 6
    partial = series.path(7) / f"data-{'0' * 32}" / "w0.safetensors"
    partial.write_bytes(b"half")
    assert series.latest() == 6
    series.async_save({"step": 7}, step=7).wait()
    series.prune()
    assert series.steps() == [0, 4, 6, 7]
    assert {name.split("/")[2] for name in contents(store)} == {series.path(step).name for step in series.steps()}


@pytest.mark.parametrize("size", [2, 3])
def test_on_several_workers(size: int, store: str) -> None:
    def body(P: Partition) -> None:
        own = {"own": checkpoint.PerWorker(P.rank), "large": torch.arange(3 << 20), "small": torch.ones(3)}
        checkpoint.save(store, own, P)
        pending = checkpoint.async_save(f"{store}/other", own, P)
        assert pending is not None
        pending.wait()
        for path in (store, f"{store}/other"):
            into = {"own": checkpoint.PerWorker(None), "large": torch.zeros(3 << 20, dtype=torch.int64)}
            checkpoint.load(path, into, P)
            assert into["own"].value == P.rank  # type: ignore[attr-defined]
            assert torch.equal(into["large"], own["large"])  # type: ignore[arg-type]

    crew(size, body)
    assert len(list(place_of(store).glob("data-*"))) == 1


def test_one_worker_without_its_data_is_an_error_on_all(store: str) -> None:
    def body(P: Partition) -> None:
        checkpoint.save(
            store if P.rank else f"{store}/elsewhere/{place_of(store).name}",
            {"own": checkpoint.PerWorker(torch.ones(2))},
            P,
        )

    errors = crew_errors(2, body)
    assert all(isinstance(error, CheckpointError) for error in errors)
    assert "in a store, that all workers share" in str(errors[0])


@workers(2)
def test_processes(tmp_path):
    """Blocks of two processes, saved to a store that is a folder, and loaded from it by one."""
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    layer = gridwise.nn.DistributedConv2d(P, 2, 3, 3, padding=1)
    series = Series(f"local://{tmp_path}/run")
    series.async_save({"layer": layer, "own": checkpoint.PerWorker(gridwise.world().rank)}, step=1)
    series.save({"layer": layer, "own": checkpoint.PerWorker(gridwise.world().rank)}, step=2)
    weight = layer.weight.detach().clone()
    for step in (1, 2):
        with torch.no_grad():
            layer.weight.zero_()
        own = checkpoint.PerWorker(None)
        assert series.load({"layer": layer, "own": own}, step=step) == step
        assert torch.equal(layer.weight, weight)
        assert own.value == gridwise.world().rank


def test_convert_to_and_from_stores(store: str, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "here", state(1))
    checkpoint.convert(tmp_path / "here", tmp_path / "whole.safetensors")
    checkpoint.convert(tmp_path / "whole.safetensors", store)
    checkpoint.convert(store, tmp_path / "again.safetensors")
    first, second = (checkpoint.read(tmp_path / name) for name in ("whole.safetensors", "again.safetensors"))
    assert torch.equal(first["model"]["weight"], second["model"]["weight"])
    with pytest.raises(CheckpointError, match="only in file systems"):
        checkpoint.convert(tmp_path / "here", f"{store}/x.safetensors")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("run", Path("run")),
        ("file:///a/b", Path("/a/b")),
        (Path("file:///a/b"), Path("/a/b")),
        ("file://localhost/a", Path("/a")),
        ("s3://bucket/a/", StorePath("s3", "bucket/a")),
        (Path("s3://bucket/a"), StorePath("s3", "bucket/a")),
        (Path("s3://bucket/a") / "b", StorePath("s3", "bucket/a/b")),
        ("local:///data/x", StorePath("local", "/data/x")),
        ("C:/x", Path("C:/x")),
    ],
)
def test_addresses(given: str | Path, path: Path | StorePath) -> None:
    assert place_of(given) == path


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("nowhere://a/b", "no driver for nowhere://"),
        ("file://a/b", "an absolute path"),
        ("simplecache::memory://a/b", "chained"),
        ("memory://", "a whole store"),
    ],
)
def test_addresses_that_cannot_be_used(
    address: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (checkpoint.load, checkpoint.verify, checkpoint.show, lambda path: checkpoint.save(path, {"x": 1})):
        with pytest.raises(CheckpointError, match=says) as caught:
            call(address)
        assert not isinstance(caught.value, CheckpointNotFound)
    assert not list(tmp_path.iterdir())


def test_the_best_and_tied_tensors_in_a_store() -> None:
    x = torch.arange(6.0)
    series = checkpoint.Series("memory://best/run", keep_last=1, keep_best=1, metric="loss")
    for step, loss in enumerate([0.5, 0.1, 0.4]):
        series.async_save({"x": x, "y": x}, step, metadata={"loss": loss}).wait()
    assert series.prune() == []
    assert (series.steps(), series.best()) == ([1, 2], 1)
    report = checkpoint.load(series.path(1), {"z": torch.zeros(6)}, rename={"y": "z"}, strict=False)
    assert torch.equal(report.into["z"], x)
    assert report.left_out == ("x",)
