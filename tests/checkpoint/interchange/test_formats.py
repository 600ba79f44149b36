"""Other formats in and out; pickle only when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from crew import crew
from torch import nn

from gridwise import checkpoint
from gridwise.errors import CheckpointDamaged, CheckpointError, CheckpointMismatch, CheckpointNotFound


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


STATE = {
    "model": {"w": torch.randn(40, 30), "half": torch.randn(3).bfloat16()},
    "complex": torch.randn(4, 2, dtype=torch.complex128),
    "list": [torch.arange(3), (torch.zeros(()), "text")],
    "step": 7,
    "options": {"lr": 0.1, 3: None},
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    crew(2, lambda P: checkpoint.save(tmp_path / "c", STATE | {"own": checkpoint.PerWorker(P.rank)}, P))
    return tmp_path / "c"


def test_to_one_safetensors_file_and_back(tmp_path: Path, saved: Path) -> None:
    seen: list[int] = []
    checkpoint.convert(saved, tmp_path / "c.safetensors", progress=seen.append)
    assert sum(seen) > 4800
    names = safetensors.torch.load_file(tmp_path / "c.safetensors")
    assert torch.equal(names["model/w"], STATE["model"]["w"])
    checkpoint.convert(tmp_path / "c.safetensors", tmp_path / "d")
    assert same(checkpoint.load(tmp_path / "d"), checkpoint.load(saved))
    assert checkpoint.load(tmp_path / "d")["own"] == [0, 1]
    assert not list(tmp_path.glob("*.tmp"))


def test_only_the_model_with_its_own_names(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    checkpoint.save(tmp_path / "c", {"model": net, "step": 1})
    checkpoint.convert(tmp_path / "c", tmp_path / "m.safetensors", prefix="model")
    other = nn.Linear(3, 2)
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "m.safetensors"))
    assert torch.equal(other.weight, net.weight)
    with pytest.raises(CheckpointNotFound, match="'nothing'"):
        checkpoint.convert(tmp_path / "c", tmp_path / "m.safetensors", prefix="nothing")


def test_what_has_a_value_for_each_worker_is_no_state(tmp_path: Path) -> None:
    crew(2, lambda P: checkpoint.save(tmp_path / "c", {"rng": checkpoint.PerWorker({"x": torch.tensor(P.rank)})}, P))
    for name, to in (("m.safetensors", "safetensors"), ("hub", "huggingface")):
        with pytest.raises(CheckpointMismatch, match="'rng' has a value for each of 2 workers"):
            checkpoint.convert(tmp_path / "c", tmp_path / name, to=to, prefix="rng")
        assert not (tmp_path / name).exists()
    checkpoint.convert(tmp_path / "c", tmp_path / "one.safetensors", prefix="rng/@1")
    assert checkpoint.load(tmp_path / "one.safetensors") == {"x": torch.tensor(1)}


def test_from_a_safetensors_file_of_another_tool(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a.weight": torch.ones(2, 3), "b/c": torch.zeros(4)}, tmp_path / "m.safetensors")
    checkpoint.convert(tmp_path / "m.safetensors", tmp_path / "c")
    found = checkpoint.load(tmp_path / "c")
    assert set(found) == {"a.weight", "b/c"}
    assert same(found, checkpoint.read(tmp_path / "m.safetensors"))


def test_the_smallest_floats_in_files_of_others(tmp_path: Path) -> None:
    """Two numbers of F4 share a byte, which is one element in torch."""
    file, numbers = tmp_path / "a.safetensors", torch.arange(24, dtype=torch.uint8).view(4, 6)
    tensors = {"scale": numbers.clone().view(torch.float8_e8m0fnu), "pairs": numbers.view(torch.float4_e2m1fn_x2)}
    safetensors.torch.save_file(tensors, file)
    checkpoint.save(tmp_path / "c", {"m": checkpoint.read(file)})
    assert checkpoint.show(file).tensors()[2][2] == "4 x 6"
    checkpoint.convert(tmp_path / "c", tmp_path / "again.safetensors", prefix="m")
    for found in (
        checkpoint.read(file),
        safetensors.torch.load_file(tmp_path / "again.safetensors"),
        safetensors.torch.load_file(file),
    ):
        for name, x in tensors.items():
            assert (found[name].dtype, found[name].shape) == (x.dtype, x.shape)
            assert torch.equal(found[name].view(torch.uint8), numbers)
    with pytest.raises(CheckpointMismatch, match="float4"):
        checkpoint.load(file, {"pairs": torch.zeros(4, 6)}, cast=True)
    checkpoint.save(tmp_path / "d", {"x": tensors["pairs"][0, 0]})
    with pytest.raises(CheckpointMismatch, match="without dims"):
        checkpoint.convert(tmp_path / "d", tmp_path / "d.safetensors")
    odd = file.read_bytes().replace(b'"shape":[4,12]', b'"shape":[8,03]').replace(b"03", b" 3")
    file.write_bytes(odd)
    with pytest.raises(CheckpointDamaged, match="share a byte"):
        checkpoint.read(file)


def test_data_files_open_in_safetensors(saved: Path) -> None:
    found: dict[str, torch.Tensor] = {}
    for file in saved.glob("data-*/*.safetensors"):
        found |= safetensors.torch.load_file(file)
    assert torch.equal(found["model/w"], STATE["model"]["w"])
    assert torch.equal(torch.view_as_complex(found["complex"]), STATE["complex"])


def test_very_many_small_tensors_are_packed_and_still_open(tmp_path: Path) -> None:
    state = {f"t{i}": torch.full((4,), float(i)) for i in range(1500)} | {"big": torch.ones(100, 100)}
    checkpoint.save(tmp_path / "c", state)
    (file,) = (tmp_path / "c").glob("data-*/*.safetensors")
    found = safetensors.torch.load_file(file)
    assert "big" in found
    assert len(found) == 2
    assert same(checkpoint.load(tmp_path / "c"), state)


def test_from_torch_save(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "s.pt")
    checkpoint.convert(tmp_path / "s.pt", tmp_path / "c")
    assert same(checkpoint.load(tmp_path / "c"), STATE)
    checkpoint.convert(tmp_path / "s.pt", tmp_path / "s.safetensors")
    assert "model/w" in safetensors.torch.load_file(tmp_path / "s.safetensors")


class Payload:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (open, (str(self.mark), "w"))


def test_code_in_a_torch_save_file_runs_only_with_trust(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    torch.save({"x": Payload(mark)}, tmp_path / "s.pt")
    with pytest.raises(CheckpointError, match="trust=True"):
        checkpoint.read(tmp_path / "s.pt")
    assert not mark.exists()
    checkpoint.read(tmp_path / "s.pt", trust=True)["x"].close()
    assert mark.exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated")
def test_from_torch_distributed_only_with_trust(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    state = {"model": {"w": torch.randn(5, 4)}, "step": 3}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    with pytest.raises(CheckpointError, match="unpickling"):
        checkpoint.convert(tmp_path / "dcp", tmp_path / "c")
    assert not (tmp_path / "c").exists()
    checkpoint.convert(tmp_path / "dcp", tmp_path / "c", trust=True)
    assert same(checkpoint.load(tmp_path / "c"), state)


def test_what_is_no_known_format(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 100)
    (tmp_path / "folder").mkdir()
    for source in ("junk", "folder", "nothing"):
        with pytest.raises(CheckpointError):
            checkpoint.convert(tmp_path / source, tmp_path / "d")
    with pytest.raises(CheckpointError, match="already"):
        checkpoint.convert(saved, tmp_path / "d")
    (file,) = saved.glob("data-*/w0.safetensors")
    damage(file)
    with pytest.raises(CheckpointDamaged):
        checkpoint.convert(saved, tmp_path / "d.safetensors")
    assert not (tmp_path / "d.safetensors").exists()
    assert not (tmp_path / "d.safetensors.tmp").exists()
