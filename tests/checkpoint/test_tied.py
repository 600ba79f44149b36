"""A tensor that stands in a state under several names is stored once, and comes back under all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import line, split
from crew import crew
from torch import nn

from gridwise import checkpoint
from gridwise.errors import CheckpointDamaged, CheckpointMismatch
from gridwise.partition import Partition


class Tied(nn.Module):
    """A language model in small: the words that go in are those that come out."""

    def __init__(self, is_tied: bool = True) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
        if is_tied:
            self.out.weight = self.words.weight


def saved(path: Path, state: object, in_background: bool) -> None:
    pending = checkpoint.async_save(path, state) if in_background else checkpoint.save(path, state)
    if in_background:
        pending.wait()


@pytest.mark.parametrize("in_background", [False, True])
def test_it_is_stored_once(in_background: bool, tmp_path: Path) -> None:
    model = Tied()
    adam = torch.optim.Adam(model.parameters())
    model.out(model.words(torch.arange(4))).sum().backward()
    adam.step()
    saved(tmp_path / "c", {"model": model, "optim": adam}, in_background)
    manifest = checkpoint.verify(tmp_path / "c")
    assert manifest.tied == {"model/out.weight": "model/words.weight"}
    assert manifest.version == 2
    data = sum(stored.nbytes for key, stored in manifest.tensors.items() if key not in manifest.tied)
    assert data <= manifest.nbytes < data + 1600 + 1000  # headers; 1600 bytes would be a second copy
    for into in (Tied(), Tied(is_tied=False)):
        checkpoint.load(tmp_path / "c", {"model": into})
        assert torch.equal(into.words.weight, model.words.weight)
        assert torch.equal(into.out.weight, model.words.weight)
    whole = checkpoint.load(tmp_path / "c")["model"]
    assert torch.equal(whole["out.weight"], model.words.weight)
    (row,) = [row for row in checkpoint.show(tmp_path / "c").tensors() if row[0] == "model/out.weight"]
    assert row[3] == "those of model/words.weight"


def test_without_ties_it_is_version_1(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", {"model": Tied(is_tied=False)})
    assert checkpoint.read_manifest(tmp_path / "c").version == 1


def test_blocks_and_their_owners(tmp_path: Path) -> None:
    """Also of a worker that has no part of the tensor; and what lies in a PerWorker stays its own."""

    def saves(P: Partition) -> None:
        x = split(torch.arange(2.0).view(2, 1), line(P, (2, 1)), P.transport.rank)
        own = torch.full((3,), P.rank)
        state: dict[str, Any] = {"a": x, "b": {"again": x}, "own": checkpoint.PerWorker({"x": own, "y": own})}
        checkpoint.save(tmp_path / "c", state, P)

    crew(3, saves)
    manifest = checkpoint.verify(tmp_path / "c")
    assert manifest.tied == {"b/again": "a"}
    loaded = checkpoint.load(tmp_path / "c")
    assert loaded["b"]["again"].tolist() == [[0.0], [1.0]]
    assert [own["y"].tolist() for own in loaded["own"]] == [[rank] * 3 for rank in range(3)]


def test_workers_with_other_ties_are_told(tmp_path: Path) -> None:
    def saves(P: Partition) -> None:
        with pytest.raises(CheckpointMismatch, match=r"the first difference is 'out\.weight'"):
            checkpoint.save(tmp_path / "c", Tied(is_tied=P.rank > 0).state_dict(keep_vars=True), P)

    crew(2, saves)


@pytest.mark.parametrize(
    "tied", ['{"x":"nothing"}', '{"a":"a"}', '{"v":"a"}', '{"x":["a"]}', '{"x":"a","y":"x"}', "[]"]
)
def test_forged_ties_are_refused(tied: str, tmp_path: Path) -> None:
    from gridwise.checkpoint.format.chunks import checksum

    x = torch.ones(3)
    checkpoint.save(tmp_path / "c", {"a": x, "b": x, "v": 1})
    file = tmp_path / "c" / "manifest.json"
    text = file.read_bytes().rpartition(b'"checksum"')[0].replace(b'{"b":"a"}', tied.encode())
    file.write_bytes(text + f'"checksum":"{checksum(text)}"}}\n'.encode())
    with pytest.raises(CheckpointDamaged):
        checkpoint.load(tmp_path / "c")
