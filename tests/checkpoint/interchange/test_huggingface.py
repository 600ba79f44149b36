"""Folders of safetensors shards with an index: into blocks, and back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from blocks import line, split
from crew import crew, crew_errors
from torch import Tensor, nn

from gridwise import checkpoint
from gridwise.checkpoint import disk
from gridwise.errors import CheckpointError, CheckpointMismatch, CheckpointNotFound, CheckpointWriteFailed
from gridwise.partition import Partition


def folder_of(path: Path, shards: list[dict[str, Tensor]]) -> Path:
    """A folder as `save_pretrained` writes it."""
    path.mkdir()
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        safetensors.torch.save_file(shard, path / name, metadata={"format": "pt"})
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text("{}")
    return path


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 4, bias=False))


def shards_of(module: nn.Module, count: int) -> list[dict[str, Tensor]]:
    items = list(module.state_dict().items())
    return [dict(items[n::count]) for n in range(count)]


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "hub", shards_of(net(), 3))


def empty_like(module: nn.Module) -> nn.Module:
    for x in module.state_dict().values():
        x.zero_()
    return module


@pytest.mark.parametrize("keyed", [False, True])
def test_into_a_module_with_and_without_a_key(folder: Path, keyed: bool) -> None:
    other = empty_like(net())
    checkpoint.load(folder, into={"model": other} if keyed else other)
    assert equal(other.state_dict(), net().state_dict())


def test_a_flat_file_into_a_keyed_module_before_and_after_conversion(folder: Path, tmp_path: Path) -> None:
    checkpoint.convert(folder, tmp_path / "c")
    checkpoint.convert(tmp_path / "c", tmp_path / "m.safetensors")
    for source in ("c", "m.safetensors"):
        other = empty_like(net())
        checkpoint.load(tmp_path / source, into={"model": other})
        assert equal(other.state_dict(), net().state_dict())
    with pytest.raises(CheckpointMismatch, match=r"only in the checkpoint: '2.weight'"):
        checkpoint.load(folder, into={"model": net()[:2]})
    with pytest.raises(CheckpointMismatch, match="does not fit"):
        checkpoint.load(folder, into={"model": net(), "average": net()})


def test_each_worker_reads_the_bytes_of_its_block(tmp_path: Path) -> None:
    """Rows are read to the byte; nothing of the other workers' rows, and nothing of shards that are not asked for."""
    whole = torch.randn(4_000, 1_001)
    folder = folder_of(tmp_path / "hub", [{"w": whole, "b": torch.ones(3)}, {"other": torch.zeros(2_000_000)}])

    def body(P: Partition) -> bool:
        mine = split(torch.zeros_like(whole), line(P, (4_000, 1_001)), P.rank)
        checkpoint.load(folder, into={"w": mine}, P=P)
        return torch.equal(mine.data, whole[mine.block.slices])

    before = _bytes_read()
    assert crew(3, body) == [True] * 3
    read = _bytes_read() - before
    assert whole.nbytes <= read < whole.nbytes + 2**20, "of all three workers together"


def _bytes_read() -> int:
    """Bytes that this process has asked the system for; of all its threads."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("workers", [2, 3])
def test_onto_a_grid_and_back_bit_for_bit(tmp_path: Path, folder: Path, workers: int, dim: int) -> None:
    wanted = net().state_dict()

    def body(P: Partition) -> None:
        state = {}
        for name, whole in wanted.items():
            if whole.dim() > dim:
                state[name] = split(torch.zeros_like(whole), line(P, tuple(whole.shape), dim), P.rank)
            else:
                state[name] = torch.zeros_like(whole)
        checkpoint.load(folder, into=state, P=P)
        checkpoint.export(tmp_path / "back", state, P, shard_size=100)

    crew(workers, body)
    names = sorted(item.name for item in (tmp_path / "back").iterdir())
    assert names[-1] == "model.safetensors.index.json"
    assert len(names) > 3
    assert not [name for name in names if name.startswith(".") or name.endswith((".part", ".tmp"))]
    assert equal(checkpoint.load(tmp_path / "back"), wanted)
    found: dict[str, Tensor] = {}
    for name in names[:-1]:
        found |= safetensors.torch.load_file(tmp_path / "back" / name)
    assert equal(found, dict(wanted))


def test_convert_both_ways(tmp_path: Path, folder: Path) -> None:
    checkpoint.convert(folder, tmp_path / "c")
    assert equal(checkpoint.load(tmp_path / "c"), net().state_dict())
    checkpoint.convert(tmp_path / "c", tmp_path / "again", to="huggingface", shard_size=150)
    index = json.loads((tmp_path / "again" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == net().state_dict().keys()
    assert equal(checkpoint.read(tmp_path / "again"), net().state_dict())
    checkpoint.convert(tmp_path / "again", tmp_path / "one", to="huggingface")
    assert [item.name for item in (tmp_path / "one").iterdir()] == ["model.safetensors"]
    assert equal(checkpoint.load(tmp_path / "one"), net().state_dict())
    with pytest.raises(CheckpointError, match="has a model already"):
        checkpoint.convert(tmp_path / "c", tmp_path / "one", to="huggingface")


def test_what_such_a_folder_cannot_hold(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", {"model": net(), "step": 7})
    with pytest.raises(CheckpointMismatch, match="'step'"):
        checkpoint.convert(tmp_path / "c", tmp_path / "hub", to="huggingface")
    checkpoint.convert(tmp_path / "c", tmp_path / "hub", to="huggingface", prefix="model")
    checkpoint.save(tmp_path / "d", {"model": net()})
    with pytest.raises(CheckpointMismatch, match="deeper than the names of one module"):
        checkpoint.convert(tmp_path / "d", tmp_path / "no", to="huggingface")
    with pytest.raises(CheckpointMismatch, match="'pigeon'"):
        checkpoint.convert(tmp_path / "d", tmp_path / "no", to="pigeon")
    assert not (tmp_path / "no").exists()


def test_an_export_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    errors = crew_errors(2, lambda P: checkpoint.export(tmp_path / "hub", {"deep": {"w": torch.ones(2)}}, P))
    assert len({str(error) for error in errors}) == 1
    assert isinstance(errors[0], CheckpointMismatch)
    assert list((tmp_path / "hub").iterdir()) == []


def test_tied_parameters_may_be_stored_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(6, 3)
            self.head = nn.Linear(3, 6, bias=False)
            self.head.weight = self.embedding.weight

    model = Tied()
    safetensors.torch.save_file({"embedding.weight": model.embedding.weight.data}, tmp_path / "m.safetensors")
    other = Tied()
    checkpoint.load(tmp_path / "m.safetensors", into=other)
    assert torch.equal(other.head.weight, model.embedding.weight)
    safetensors.torch.save_file({"other": torch.ones(1)}, tmp_path / "n.safetensors")
    with pytest.raises(CheckpointMismatch, match=r"only in `into`: 'embedding.weight', 'head.weight'"):
        checkpoint.load(tmp_path / "n.safetensors", into=other)


def test_links_of_the_hubs_cache_are_followed(tmp_path: Path, folder: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, item in enumerate(sorted(folder.iterdir())):
        os.rename(item, blobs / str(number))
        (snapshot / item.name).symlink_to(Path("..") / ".." / "blobs" / str(number))
    assert equal(checkpoint.load(snapshot), net().state_dict())


def test_unaligned_tensors_of_other_writers(tmp_path: Path) -> None:
    x, y = torch.arange(5, dtype=torch.uint8), torch.randn(7, 6, dtype=torch.float64)
    header = json.dumps(
        {
            "x": {"dtype": "U8", "shape": [5], "data_offsets": [0, 5]},
            "y": {"dtype": "F64", "shape": [7, 6], "data_offsets": [5, 5 + y.nbytes]},
        }
    ).encode()
    data = len(header).to_bytes(8, "little") + header + x.numpy().tobytes() + y.numpy().tobytes()
    (tmp_path / "m.safetensors").write_bytes(data)

    def body(P: Partition) -> bool:
        mine = split(torch.zeros_like(y), line(P, (7, 6), 1), P.rank)
        checkpoint.load(tmp_path / "m.safetensors", into={"y": mine}, P=P)
        return torch.equal(mine.data, y[mine.block.slices])

    assert crew(2, body) == [True, True]
    checkpoint.convert(tmp_path / "m.safetensors", tmp_path / "c")
    assert torch.equal(checkpoint.load(tmp_path / "c")["y"], y)


def test_bin_files_only_with_trust(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    shards = shards_of(net(), 2)
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    for name, shard in zip(names, shards, strict=True):
        torch.save(shard, folder / name)
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for attempt in (lambda: checkpoint.read(folder), lambda: checkpoint.convert(folder, tmp_path / "c")):
        with pytest.raises(CheckpointError, match="trust=True"):
            attempt()
    assert equal(checkpoint.read(folder, trust=True), net().state_dict())
    weight_map[next(iter(weight_map))] = "../outside.bin"
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="files of the same folder"):
        checkpoint.read(folder, trust=True)


def test_a_folder_with_several_models_asks_for_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        safetensors.torch.save_file({name: torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(
        CheckpointNotFound, match=r"several safetensors files and no index: a.safetensors, b.safetensors"
    ):
        checkpoint.load(tmp_path)
    assert list(checkpoint.load(tmp_path / "b.safetensors")) == ["b"]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    state = {"a": torch.ones(100), "b": torch.zeros(100)}
    real, folder = disk.create, tmp_path / "hub"

    def create(path: Path) -> int:
        if path.name.startswith("model-00002"):
            raise OSError(28, "No space left on device")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "create", create)
        errors = crew_errors(workers, lambda P: checkpoint.export(folder, state, P, shard_size=400))
        assert all(isinstance(error, CheckpointWriteFailed) for error in errors)
        assert list(folder.iterdir()) == []
        checkpoint.save(tmp_path / "c", state)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.convert(tmp_path / "c", folder, to="huggingface", shard_size=400)
        assert list(folder.iterdir()) == []


def test_what_a_killed_export_has_left_is_removed(tmp_path: Path) -> None:
    for name in ("model.safetensors.part", "model-00002-of-00007.safetensors.part", "model.safetensors.part.tmp"):
        (tmp_path / name).touch()
    (tmp_path / "mine.safetensors.part").touch()
    checkpoint.export(tmp_path, {"a": torch.ones(100)})
    assert sorted(item.name for item in tmp_path.iterdir()) == ["mine.safetensors.part", "model.safetensors"]
