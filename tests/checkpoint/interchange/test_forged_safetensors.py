"""Forged safetensors files and indices: one error, before anything is allocated, opened outside, or changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from crew import crew_errors

from gridwise import checkpoint
from gridwise.errors import CheckpointDamaged, CheckpointError


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def file_of(header: Any, data: bytes = bytes(8), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


GOOD = file_of({"a": entry()})

FORGED: dict[str, bytes] = {
    "a header longer than the file": file_of({"a": entry()}, length=10_000),
    "a header of 2^63 bytes": file_of({"a": entry()}, length=2**63),
    "a header over the limit": file_of({"a": entry()}, length=100_000_001),
    "no header": file_of(b""),
    "a header cut short": GOOD[:30],
    "a header that is a list": file_of([1]),
    "a name twice": file_of(b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2)),
    "not a number": file_of(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}'),
    "brackets without end": file_of(b'{"a":' + b"[" * 100_000),
    "no text": file_of(b'{"\xff\xfe":1}'),
    "overlapping ranges": file_of({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)),
    "the same range twice": file_of({"a": entry(), "b": entry()}),
    "a gap": file_of({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20)),
    "bytes at the end": file_of({"a": entry()}, bytes(9)),
    "data cut short": file_of({"a": entry()}, bytes(7)),
    "offsets backwards": file_of({"a": entry(offsets=(8, 0))}),
    "negative offsets": file_of({"a": entry(offsets=(-8, 0))}),
    "offsets beyond the file": file_of({"a": entry(shape=(2**40,), offsets=(0, 2**42))}),
    "three offsets": file_of({"a": entry(offsets=(0, 4, 8))}),
    "offsets that are texts": file_of({"a": entry(offsets=("0", "8"))}),
    "a shape that is larger than its bytes": file_of({"a": entry(shape=(2**31, 2**31))}),
    "a shape that wraps around": file_of({"a": entry(shape=(2**62, 4), offsets=(0, 0))}, b""),
    "a negative shape": file_of({"a": entry(shape=(-1, -2))}),
    "a shape of a fraction": file_of({"a": entry(shape=(2.0,))}),
    "a shape that is true": file_of({"a": entry(shape=(True, 2))}),
    "too many dims": file_of({"a": entry(shape=(1,) * 2000 + (2,))}),
    "a dtype of another size": file_of({"a": entry(dtype="F64")}),
    "an unknown dtype": file_of({"a": entry(dtype="F128")}),
    "a dtype of ours alone": file_of({"a": entry(dtype="C128", shape=(), offsets=(0, 16))}, bytes(16)),
    "a dtype that is a list": file_of({"a": entry(dtype=["F32"])}),
    "an entry that is a number": file_of({"a": 8}),
    "an entry with more in it": file_of({"a": entry() | {"path": "/etc/passwd"}}),
    "metadata that is a list": file_of({"__metadata__": ["x"], "a": entry()}),
    "metadata of numbers": file_of({"__metadata__": {"x": 1}, "a": entry()}),
    "notes that are none": file_of({"__metadata__": {"gridwise": "[]"}, "a": entry()}),
    "notes that call numbers complex": file_of({"__metadata__": {"gridwise": '{"complex":["a"]}'}, "a": entry()}),
    "notes with a key that is none": file_of({"__metadata__": {"gridwise": "{}"}, "a//~9": entry()}),
}


def test_the_file_that_is_forged_is_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(GOOD)
    assert torch.equal(checkpoint.load(tmp_path / "m.safetensors")["a"], torch.zeros(2))
    with safetensors.safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert list(file.keys()) == ["a"]


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_file_is_refused_and_nothing_is_changed(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(FORGED[name])
    into = {"a": torch.full((2,), 7.0)}
    ways: list[Callable[[], Any]] = [
        lambda: checkpoint.load(path, into=into),
        lambda: checkpoint.load(tmp_path, into=into),
        lambda: checkpoint.convert(path, tmp_path / "c"),
    ]
    for way in ways:
        with pytest.raises(CheckpointError):
            way()
    assert torch.equal(into["a"], torch.full((2,), 7.0))
    assert not (tmp_path / "c").exists()


def folder_of(path: Path, weight_map: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "model-1.safetensors").write_bytes(file_of({"a": entry()}))
    (path / "model-2.safetensors").write_bytes(file_of({"b": entry()}))
    index = weight_map if isinstance(weight_map, bytes) else json.dumps({"weight_map": weight_map}).encode()
    (path / "model.safetensors.index.json").write_bytes(index)
    return path


MAP = {"a": "model-1.safetensors", "b": "model-2.safetensors"}

FORGED_INDICES: dict[str, Any] = {
    "a way up": MAP | {"a": "../model-1.safetensors"},
    "a way down": MAP | {"a": "sub/model-1.safetensors"},
    "a way of Windows": MAP | {"a": "..\\model-1.safetensors"},
    "an absolute way": MAP | {"a": "/etc/model-1.safetensors"},
    "two dots": MAP | {"a": ".."},
    "a file of another kind": MAP | {"a": "/etc/passwd"},
    "a pickle": MAP | {"a": "model-1.bin"},
    "a hidden file": MAP | {"a": ".model-1.safetensors"},
    "a name with a zero": MAP | {"a": "model-1\0.safetensors"},
    "a number": MAP | {"a": 1},
    "a list": MAP | {"a": ["model-1.safetensors"]},
    "a missing shard": MAP | {"c": "model-3.safetensors"},
    "a tensor in the wrong shard": MAP | {"a": "model-2.safetensors", "b": "model-1.safetensors"},
    "a tensor that is in no shard": MAP | {"c": "model-1.safetensors"},
    "a tensor that the index does not know": {"a": "model-1.safetensors", "c": "model-2.safetensors"},
    "no map": b"{}",
    "an empty map": {},
    "a name twice": b'{"weight_map":{"a":"model-1.safetensors","a":"model-2.safetensors"}}',
    "no JSON": b"\xff\x00",
}


@pytest.mark.parametrize("name", FORGED_INDICES)
def test_a_forged_index_is_refused(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path / "hub", FORGED_INDICES[name])
    (tmp_path / "model-1.safetensors").write_bytes(file_of({"a": entry()}))  # what a way up would lead to
    with pytest.raises(CheckpointDamaged):
        checkpoint.load(folder)
    with pytest.raises(CheckpointDamaged):
        checkpoint.convert(folder, tmp_path / "c")


def test_the_index_that_is_forged_is_a_good_one(tmp_path: Path) -> None:
    assert set(checkpoint.load(folder_of(tmp_path / "hub", MAP))) == {"a", "b"}


def test_a_pipe_in_the_place_of_a_shard_is_not_waited_for(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "hub", MAP)
    (folder / "model-2.safetensors").unlink()
    os.mkfifo(folder / "model-2.safetensors")
    with pytest.raises(CheckpointDamaged, match="no regular file"):
        checkpoint.load(folder)


def test_one_error_for_all_workers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "hub", MAP | {"a": "../model-1.safetensors"})
    errors = crew_errors(3, lambda P: checkpoint.load(folder, into={"a": torch.zeros(2)}, P=P))
    assert len({str(error) for error in errors}) == 1
    assert "only safetensors files of the same folder" in str(errors[0])


def test_a_file_that_is_replaced_between_its_header_and_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(GOOD)
    from gridwise.checkpoint.reading import loading

    plan = loading.plan_load

    def replaced(*arguments: Any) -> Any:
        path.write_bytes(file_of({"b": entry()}))
        return plan(*arguments)

    monkeypatch.setattr(loading, "plan_load", replaced)
    with pytest.raises(CheckpointDamaged, match="another file has taken its place"):
        checkpoint.load(path)
