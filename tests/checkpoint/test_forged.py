"""Forged checkpoints, with checksums made to fit: refused, and nobody is led out of the folder."""

from __future__ import annotations

import copy
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_manifest_parser import NAME, sealed, sealed_in_lines, tree_of

from gridwise import checkpoint
from gridwise.checkpoint.format.chunks import checksum
from gridwise.checkpoint.format.manifest_parser import from_bytes
from gridwise.checkpoint.format.values import decoded
from gridwise.checkpoint.state.key_tree import is_length
from gridwise.errors import CheckpointDamaged, CheckpointError

NO_NAMES = [
    *("#", "#01", "#+1", "#-0", "# 1", "#1 ", "#\u0661", "#1_0", "#x", "#1.0"),
    *("~", "~5", "~05~", "a~", "a~2b", "~x", "~4a", "a~4"),
    *("@", "@0", "@1", "@00", "@x", "w/@1", "w/@00", "w/@-1", "w/@\u0660"),
    *("", "x/", "/x", "x//y"),
]


@pytest.mark.parametrize("key", NO_NAMES)
def test_a_key_that_no_save_writes_is_refused(saved: Path, key: str) -> None:
    tree = tree_of(saved)
    with pytest.raises(CheckpointDamaged, match="no name"):
        from_bytes(sealed(tree | {"values": tree["values"] | {key: 1}}), NAME)
    tree["tensors"] = {key if name == "b/x" else name: item for name, item in tree["tensors"].items()}
    for seal in (sealed, sealed_in_lines):
        with pytest.raises(CheckpointDamaged, match="no name"):
            from_bytes(seal(tree), NAME)
    with pytest.raises(CheckpointDamaged, match="no name"):
        from_bytes(sealed(tree_of(saved) | {"per_worker": {"w": 1, key: 1}}), NAME)


def test_every_key_that_a_save_writes_is_read(tmp_path: Path) -> None:
    names = ["~", "~5", "~05", "#1", "#", "@0", "@", "/", "a/b", "a~4", "", "\u0661", 0, -1, 10, 1 << 70]
    state = {"values": {n: str(n) for n in names}, "tensors": {n: torch.tensor([len(str(n))]) for n in names}}
    state["tensors"]["own"] = checkpoint.PerWorker({n: torch.ones(1) for n in names})
    checkpoint.save(tmp_path / "c", state)
    found = checkpoint.load(tmp_path / "c")
    assert found["values"] == state["values"]
    assert {n: x.item() for n, x in found["tensors"].items() if n != "own"} == {n: len(str(n)) for n in names}
    assert set(found["tensors"]["own"][0]) == set(names)


@pytest.mark.parametrize("text", ["1e999", "-1e999", "[1e400]", "NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_are_refused(saved: Path, text: str) -> None:
    data = sealed(tree_of(saved) | {"values": {"x": "here"}}).replace(b'"here"', text.encode())
    data = data[: data.rindex(b'"checksum"')]
    with pytest.raises(CheckpointDamaged, match="no number"):
        from_bytes(data + f'"checksum":"{checksum(data)}"}}\n'.encode(), NAME)


def test_infinities_come_back(saved: Path) -> None:
    assert checkpoint.load(saved)["v"] == {"inf": float("inf"), "c": complex(1, float("inf"))}


# Links


def test_a_link_to_a_checkpoint_is_followed(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("c")
    (tmp_path / "runs").symlink_to(tmp_path)
    for path in (tmp_path / "latest", tmp_path / "runs" / "latest", tmp_path / "runs" / "c"):
        checkpoint.verify(path)
        assert torch.equal(checkpoint.load(path)["a"], checkpoint.load(saved)["a"])
    checkpoint.save(tmp_path / "latest", {"a": torch.zeros(2)})
    assert torch.equal(checkpoint.load(saved)["a"], torch.zeros(2))


def folder_elsewhere(path: Path, elsewhere: Path) -> Path:
    (data,) = path.glob("data-*")
    shutil.move(data, elsewhere / data.name)
    data.symlink_to(elsewhere / data.name)
    return data


def file_elsewhere(path: Path, elsewhere: Path) -> Path:
    (file,) = path.glob("data-*/w0.safetensors")
    shutil.move(file, elsewhere / "secret")
    file.symlink_to(elsewhere / "secret")
    return file


def manifest_elsewhere(path: Path, elsewhere: Path) -> Path:
    shutil.move(path / "manifest.json", elsewhere / "other.json")
    (path / "manifest.json").symlink_to(elsewhere / "other.json")
    return path / "manifest.json"


@pytest.mark.parametrize("lead_out", [folder_elsewhere, file_elsewhere, manifest_elsewhere])
def test_a_link_inside_a_checkpoint_is_refused(saved: Path, tmp_path: Path, lead_out: Any) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = lead_out(saved, tmp_path / "elsewhere")
    into = {"a": torch.zeros(4, 3)}
    for read in (checkpoint.verify, checkpoint.load, checkpoint.read, lambda path: checkpoint.load(path, into)):
        with pytest.raises(CheckpointError, match=f"{link.name}.* is a link"):
            read(saved)
    assert not into["a"].any()


def test_what_a_writer_finds_is_not_followed_either(tmp_path: Path) -> None:
    """A lock that is a link would make or lock a file elsewhere."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / ".lock").symlink_to(tmp_path / "made")
    with pytest.raises(CheckpointError, match="lock"):
        checkpoint.save(tmp_path / "c", {"a": 1})
    assert not (tmp_path / "made").exists()


def test_data_that_is_no_json_in_the_notes_of_a_file(tmp_path: Path) -> None:
    """A safetensors file from elsewhere, whose notes say what no export of ours says."""
    from safetensors.torch import save_file

    values = ("3", '{"#01": 1}', '{"x": 1e999}', '{"y": 1, "y": 2}', '{"y": {"$tuple": 3}}', '{"": 1}')
    others = ('{"per_worker": "ab"}', '{"workers": -1}', '{"complex": 3}', '{"complex": ["x"]}')
    for said in ("{", "[]", "3", *others, *(f'{{"values": {text}}}' for text in values)):
        save_file({"x": torch.ones(3)}, tmp_path / "s.safetensors", {"gridwise": said})
        with pytest.raises(CheckpointError, match=r"s\.safetensors"):
            checkpoint.convert(tmp_path / "s.safetensors", tmp_path / "out")
        assert not (tmp_path / "out").exists()


# Random forgeries, loaded

ODD_PARTS = ["#1", "#01", "#\u0661", "~05", "~5", "~4", "@0", "@1", "a", "", "x/y", "w", "n"]
ODD_VALUES = [
    *(0, -1, 1 << 70, 1.5, "x", None, True, [], {}, {"$list": 1}, {"$items": 0}, {"$float": "inf"}, {"$tuple": "ab"}),
    *(
        {"$complex": "12"},
        {"$complex": ["1e999", "0"]},
        {"$device": 0},
        {"$dtype": "float"},
        {"$dict": [[1, 2], [True, 3]]},
    ),
    *({"$bytes": "QQ=a"}, {"$dict": {"a": 1}}, [[{"$tuple": []}]]),
]


def forged_at_random(tree: dict[str, Any], choice: random.Random) -> None:
    """Change an entry's name or what it says, or add one: in the ways that a forger would try."""
    section = tree[choice.choice(["tensors", "values", "per_worker"])]
    name = choice.choice([*section, choice.choice(ODD_PARTS)])
    other = "/".join([*name.split("/")[: choice.randint(0, 2)], choice.choice(ODD_PARTS)])
    how = choice.choice(["rename", "put", "add", "drop"])
    if how == "rename" and name in section:
        section[other] = section.pop(name)
    elif how == "drop":
        section.pop(name, None)
    else:
        section[other if how == "add" else name] = choice.choice(ODD_VALUES)


def leaves(tree: Any) -> int:
    if isinstance(tree, dict | list | tuple):
        return sum(map(leaves, tree.values() if isinstance(tree, dict) else tree))
    return 1


@pytest.mark.parametrize("times", [200, pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(3000)])])
def test_random_forgeries_are_read_as_they_stand_or_refused(tmp_path: Path, times: int) -> None:
    path = tmp_path / "c"
    state = {
        "a": torch.ones(2),
        "n": {1: torch.ones(1), 10: torch.ones(1)},
        "~5": 1,
        "#1": 2,
        "w": checkpoint.PerWorker(3),
    }
    checkpoint.save(path, state | {"l": [torch.ones(1), {"x": 1}]})
    good = tree_of(path)
    choice = random.Random(5)
    read = 0
    for _ in range(times):
        tree = copy.deepcopy(good)
        for _ in range(choice.randint(1, 3)):
            forged_at_random(tree, choice)
        (path / "manifest.json").write_bytes(choice.choice([sealed, sealed_in_lines])(tree))
        target = torch.zeros(2)
        try:
            manifest = checkpoint.verify(path)
            found = checkpoint.load(path)
            checkpoint.load(path, {"a": target})
        except CheckpointError:
            assert not target.any()
            continue
        read += 1
        held = [value for value in manifest.values.values() if not is_length(value)]
        assert leaves(found) == len(manifest.tensors) + sum(leaves(decoded(value)) for value in held)
    assert read
