"""Tensors read line by line: never anything that the strict reader of the whole would not have read alike."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from gridwise import checkpoint
from gridwise.checkpoint.format import manifest_parser
from gridwise.checkpoint.format.manifest import Manifest
from gridwise.checkpoint.format.manifest_parser import read_manifest_bytes
from gridwise.errors import CheckpointDamaged


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("lines") / "c"
    state = {f"t{i}": torch.randn(3, i + 1) for i in range(4)}
    state |= {
        "~odd / name": torch.ones(2),
        "none": torch.ones(0),
        "scalar": torch.tensor(1),
        "large": torch.ones(300_000),
        "of many dims": torch.ones([1] * 40),
    }
    checkpoint.save(path, {**state, "step": 1})
    return read_manifest_bytes(path)


def read_as_json(data: bytes, monkeypatch: pytest.MonkeyPatch) -> Manifest | type[Exception]:
    with monkeypatch.context() as patch:
        patch.setattr(manifest_parser, "without_tensors", lambda data: None)
        return read(data)


def read(data: bytes) -> Manifest | type[Exception]:
    try:
        return manifest_parser._parsed(data)
    except (CheckpointDamaged, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return CheckpointDamaged


def test_lines_are_read(manifest: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(manifest)
    assert isinstance(found, Manifest)
    assert found == read_as_json(manifest, monkeypatch)
    fast = manifest_parser._parsed_by_lines(manifest)
    assert fast is not None
    assert {"t0", "t3", "scalar"} <= set(fast[2].wholes.keys)
    assert {"none", "large"} <= fast[2].others.keys()
    assert list(found.tensors) == list(fast[2])


STATES = {
    "one tensor": {"x": torch.ones(1, dtype=torch.uint8)},
    "one kind": {f"t{i}": torch.full((2,), i) for i in range(30)},
    "many kinds": {f"t{i}": torch.full((i % 25 + 1,), i) for i in range(60)},
    "a long name first": {"n" * 300: torch.ones(2), **{f"t{i}": torch.full((2,), i) for i in range(30)}},
    "a long name last": {**{f"t{i}": torch.full((2,), i) for i in range(30)}, "n" * 300: torch.ones(2)},
    "a long shape": {"a": torch.ones([1] * 60), **{f"t{i}": torch.full((1, 1, 3), i) for i in range(30)}},
    "long shapes only": {f"t{i}": torch.ones([1] * 60 + [i + 1]) for i in range(30)},
}


@pytest.mark.parametrize("name", STATES)
def test_all_lines_are_read_in_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    checkpoint.save(tmp_path / "c", STATES[name])
    data = read_manifest_bytes(tmp_path / "c")
    fast = manifest_parser._parsed_by_lines(data)
    assert fast is not None
    assert fast[2].wholes.keys == list(STATES[name])
    assert read(data) == read_as_json(data, monkeypatch)
    found = checkpoint.load(tmp_path / "c")
    assert all(torch.equal(found[key], x) for key, x in STATES[name].items())


def changed(data: bytes, choice: random.Random) -> bytes:
    """One small change between the first and the last line of the tensors, or of the lines around them."""
    start, stop = data.index(b'"tensors"'), data.index(b'"values"') + 8
    how, at = choice.randrange(5), choice.randrange(start, stop)
    if how == 0:
        return (
            data[:at] + choice.choice([b"0", b",", b"]", b"[", b'"', b"}", b"{", b"\n", b" ", b"-", b"\\"]) + data[at:]
        )
    if how == 1:
        return data[:at] + data[at + 1 :]
    if how == 2:
        return data[:at] + bytes([choice.randrange(9, 128)]) + data[at + 1 :]
    lines = data.split(b"\n")
    first, second = choice.randrange(2, len(lines) - 3), choice.randrange(2, len(lines) - 3)
    if how == 3:
        lines[first], lines[second] = lines[second], lines[first]
    else:
        lines.insert(first, lines[second])
    return b"\n".join(lines)


def test_whatever_is_changed_both_ways_agree(manifest: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = random.Random(3)
    accepted = 0
    for _ in range(3000):
        data = changed(manifest, choice)
        found = read(data)
        assert found == read_as_json(data, monkeypatch), data
        if isinstance(found, Manifest):
            accepted += 1
            assert list(found.tensors) == list(read_as_json(data, monkeypatch).tensors)  # type: ignore[union-attr]
    assert 100 < accepted < 2900
