"""Forged checkpoints, with checksums made to fit: refused in little time and memory, and nobody is led out of the folder."""

from __future__ import annotations

import copy
import gc
import os
import random
import shutil
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from test_manifest_parser import NAME, sealed, sealed_in_lines, tree_of

from gridwise import checkpoint
from gridwise.checkpoint.format import manifest_parser
from gridwise.checkpoint.format.chunks import CHUNK, checksum
from gridwise.checkpoint.format.manifest_parser import from_bytes
from gridwise.checkpoint.format.values import decoded
from gridwise.checkpoint.reading.open_file import DataFile
from gridwise.checkpoint.state.key_tree import is_length
from gridwise.errors import CheckpointDamaged, CheckpointError


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "c"
    state = {
        "a": torch.randn(4, 3),
        "b": {"x": torch.arange(5)},
        "large": torch.randn(3 << 18),
        "n": {1: torch.ones(1)},
    }
    checkpoint.save(
        path, state | {"w": checkpoint.PerWorker(3), "v": {"inf": float("inf"), "c": complex(1, float("inf"))}}
    )
    return path


def forge(path: Path, **changes: dict[str, Any]) -> None:
    tree = tree_of(path)
    for name, entries in changes.items():
        tree[name] |= entries
    (path / "manifest.json").write_bytes(sealed(tree))


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


# Time and memory


def peak_of(call: Any, match: str) -> int:
    """The most bytes that Python had while a call was refused."""
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointDamaged, match=match):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_manifest_of_zeros_is_refused_by_its_first_bytes(saved: Path) -> None:
    os.truncate(saved / "manifest.json", 0)
    os.truncate(saved / "manifest.json", manifest_parser.LARGEST_MANIFEST)
    assert peak_of(lambda: checkpoint.load(saved), "does not start like one") < 1 << 20


def test_a_manifest_without_an_end_is_refused_by_its_last_bytes(saved: Path) -> None:
    os.truncate(saved / "manifest.json", manifest_parser.LARGEST_MANIFEST)
    assert peak_of(lambda: checkpoint.load(saved), "does not end with its checksum") < 1 << 20


def test_a_header_of_zeros_takes_little_memory(saved: Path) -> None:
    """128 MiB of header, all of them a hole in the file."""
    tree = tree_of(saved)
    size = manifest_parser.LARGEST_HEADER + 20
    file = next(saved.glob("data-*/w0.safetensors"))
    os.truncate(file, 0)
    os.truncate(file, size)
    tree["files"] = [["w0.safetensors", size, manifest_parser.LARGEST_HEADER, "0" * 16]]
    tree["tensors"] = {"a": ["U8", [20], [[0, manifest_parser.LARGEST_HEADER, "0" * 16]]]}
    (saved / "manifest.json").write_bytes(sealed(tree))
    assert peak_of(lambda: checkpoint.verify(saved), "header is not the one") < 4 << 20


def sparse(path: Path, chunks: int) -> dict[str, Any]:
    """A file with so many chunks, all of them holes, and a manifest with wrong checksums for them."""
    tree = tree_of(path)
    (name, _, header, header_sum), *_ = tree["files"]
    size = header + chunks * CHUNK
    os.truncate(next(path.glob("data-*/w0.safetensors")), size)
    tree["files"] = [[name, size, header, header_sum]]
    tree["tensors"] = {"a": ["U8", [chunks * CHUNK], [[0, header, "0" * 16 * chunks]]]}
    (path / "manifest.json").write_bytes(sealed(tree))
    return tree


def test_a_load_stops_soon_where_everything_is_wrong(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse(saved, 1 << 12)
    read: list[int] = []
    for name in ("bytes", "read"):
        monkeypatch.setattr(DataFile, name, _counted(getattr(DataFile, name), read))
    for call in (
        lambda: checkpoint.load(saved),
        lambda: checkpoint.load(saved, {"a": torch.empty(1 << 32, dtype=torch.uint8)}),
    ):
        read.clear()
        with pytest.raises(CheckpointDamaged, match=r"(?s)'a'.*have the checksum.*the rest was not looked at"):
            call()
        assert len(read) <= 128  # of 512; each thread may have a few under way


def _counted(method: Any, calls: list[int]) -> Any:
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return method(*args, **kwargs)

    return counted


def test_more_new_memory_than_there_is_is_refused_before_it_is_asked_for(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file full of holes costs its writer nothing."""
    sparse(saved, 1 << 12)
    monkeypatch.setattr("gridwise.checkpoint.reading.available_memory.largest", lambda: 1 << 31)
    asked: list[Any] = []
    real = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: asked.append(size) or real(*size, **options))
    with pytest.raises(CheckpointError, match=r"4294967296 bytes.* 2147483648"):
        checkpoint.load(saved)
    assert not asked
    monkeypatch.setattr(torch, "empty", real)
    with pytest.raises(CheckpointDamaged, match="have the checksum"):  # it has memory of its own already
        checkpoint.load(saved, {"a": torch.empty(1 << 32, dtype=torch.uint8)})


def many(path: Path, count: int) -> dict[str, Any]:
    """A manifest with very many small tensors, as they would follow one another in its file."""
    tree = tree_of(path)
    header = tree["files"][0][2]
    tree["files"][0][1] = header + 4 * count
    tree["tensors"] = {f"t{n}": ["F32", [1], [[0, header + 4 * n, "0" * 16]]] for n in range(count)}
    return tree


def twin(tree: dict[str, Any]) -> bytes:
    last = list(tree["tensors"])[-1]
    text = sealed_in_lines(tree).replace(f'"{last}"'.encode(), b'"t0"')
    text = text[: text.rindex(b'"checksum"')]
    return text + f'"checksum":"{checksum(text)}"}}\n'.encode()


def short_file(tree: dict[str, Any]) -> bytes:
    tree["files"][0][1] += 1
    return sealed_in_lines(tree)


def odd_line(tree: dict[str, Any]) -> bytes:
    tree["tensors"]["odd"] = ["F99", [1], []]
    return sealed_in_lines(tree)


def blocks_of_one(tree: dict[str, Any]) -> bytes:
    """One tensor in very many blocks, no grid of them."""
    header, count = tree["files"][0][2], len(tree["tensors"])
    blocks = [[0, header + 4 * n, "0" * 16, [n % 2, n // 2], [n % 2 + 1, n // 2 + 1]] for n in range(count)]
    blocks[-1][3:], blocks[-2][3:] = blocks[0][3:], blocks[0][3:]
    tree["tensors"] = {"x": ["F32", [2, count // 2], blocks]}
    return sealed_in_lines(tree)


def many_of_odd_blocks(tree: dict[str, Any]) -> bytes:
    """Many tensors, each of a few hundred blocks that have to be compared with one another."""
    header, count = tree["files"][0][2], len(tree["tensors"])
    each, at, tensors = 500, header, {}
    for n in range(count // each):
        blocks = []
        for row in range(each // 2):
            middle = 1 + row % 3  # the cut is elsewhere in each row
            for ends in ((0, middle), (middle, 5)):
                blocks.append([0, at, "0" * 16, [row, ends[0]], [row + 1, ends[1]]])
                at += ends[1] - ends[0]
        tensors[f"x{n}"] = ["U8", [each // 2, 5], blocks]
    tree["tensors"], tree["files"][0][1] = tensors, at
    blocks[-1][3:] = blocks[-3][3:]
    return sealed_in_lines(tree)


def values(tree: dict[str, Any]) -> bytes:
    tree["values"] = dict.fromkeys(tree["tensors"], 0) | {"#01": 0}
    tree["tensors"], tree["files"] = {}, []
    return sealed_in_lines(tree)


def files(tree: dict[str, Any]) -> bytes:
    tree["files"] = [[f"w{n}.safetensors", 100, 100, "0" * 16] for n in range(len(tree["tensors"]))] * 2
    tree["tensors"] = {}
    return sealed_in_lines(tree)


@pytest.mark.parametrize("forged", [twin, short_file, odd_line, blocks_of_one, many_of_odd_blocks, values, files])
def test_a_manifest_of_very_many_entries_is_refused_in_time_that_grows_with_its_length(
    saved: Path, forged: Any
) -> None:
    """Four times as many take about four times as long, not sixteen; and some tens of bytes for each byte of it."""
    took = []
    gc.disable()  # it would look at all entries again and again
    try:
        for count in (3_000, 12_000):
            data = forged(many(saved, count))
            times = []
            for _ in range(3):
                start = time.process_time()
                with pytest.raises(CheckpointDamaged):
                    from_bytes(data, NAME)
                times.append(time.process_time() - start)
            took.append(min(times))
    finally:
        gc.enable()
    assert took[1] < 10 * took[0]
    small = forged(many(saved, 1_000))
    assert peak_of(lambda: from_bytes(small, NAME), "manifest") < 50 * len(small)


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
