"""The manifest reader: what was written comes back; anything else is an error that names the file, and nothing more."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridwise import checkpoint
from gridwise.checkpoint.format.chunks import checksum
from gridwise.checkpoint.format.manifest import Manifest, to_bytes
from gridwise.checkpoint.format.manifest_parser import from_bytes, read_manifest_bytes
from gridwise.errors import CheckpointDamaged, CheckpointError

NAME = Path("somewhere/manifest.json")


def sealed(tree: Any) -> bytes:
    """A manifest with this content and the right checksum, as a hostile writer would make it."""
    head = {"format": "gridwise-checkpoint", "format_version": 1}
    body = {key: value for key, value in tree.items() if key not in (*head, "checksum")}
    head["format_version"] = tree.get("format_version", 1)
    text = json.dumps(head | body, separators=(",", ":"))[:-1].replace(',"id"', ',\n"id"', 1) + ",\n"
    return text.encode() + f'"checksum":"{checksum(text.encode())}"}}\n'.encode()


def sealed_in_lines(tree: Any) -> bytes:
    """The same with a line for each tensor, as we write it ourselves: such a manifest is read line by line."""
    text = sealed(tree).decode()
    if isinstance(tree.get("tensors"), dict):
        dumps = json.JSONEncoder(separators=(",", ":")).encode
        lines = ",\n".join(f"{dumps(str(key))}:{dumps(item)}" for key, item in tree["tensors"].items())
        text = text.replace(
            f',"tensors":{dumps(tree["tensors"])},"values":', f',\n"tensors":{{\n{lines}\n}},\n"values":'
        )
    text = text[: text.rindex('"checksum"')]
    return text.encode() + f'"checksum":"{checksum(text.encode())}"}}\n'.encode()


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("example") / "c"
    state = {"a": torch.randn(4, 3), "b": {"c": torch.arange(5)}, "l": [torch.ones(1), 2], "v": {"x": [1, (2.5, None)]}}
    checkpoint.save(path, state | {"w": checkpoint.PerWorker(3)})
    return path


def tree_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "manifest.json").read_text())


def test_what_was_written_comes_back(example: Path) -> None:
    data = read_manifest_bytes(example)
    manifest = from_bytes(data, NAME)
    assert to_bytes(manifest) == data
    assert from_bytes(sealed(tree_of(example)), NAME) == manifest
    assert from_bytes(sealed_in_lines(tree_of(example)), NAME) == manifest
    assert data.endswith(b"}\n")
    assert json.loads(data)["format_version"] == 1


def test_a_newer_version_is_refused_by_name(example: Path) -> None:
    with pytest.raises(CheckpointDamaged, match="format_version 3, this Gridwise reads up to 2"):
        from_bytes(sealed(tree_of(example) | {"format_version": 3, "what": "ever"}), NAME)


def hostile_cases() -> dict[str, Any]:
    """Name -> a change of a good manifest's content."""

    def put(*way: Any, value: Any) -> Any:
        def change(tree: dict[str, Any]) -> dict[str, Any]:
            at: Any = tree
            for step in way[:-1]:
                at = at[step]
            at[way[-1]] = value
            return tree

        return change

    block = ("tensors", "a", 2, 0)
    return {
        "traversal": put("files", 0, 0, value="../../etc/passwd"),
        "absolute": put("files", 0, 0, value="/etc/passwd"),
        "hidden traversal": put("files", 0, 0, value="w0.safetensors/../../x"),
        "newline in a name": put("files", 0, 0, value="w0.safetensors\n"),
        "id is a path": put("id", value="../" + "0" * 29),
        "id is too long": put("id", value="0" * 33),
        "giant file": put("files", 0, 1, value=1 << 62),
        "negative file": put("files", 0, 1, value=-1),
        "giant header": put("files", 0, 2, value=1 << 40),
        "giant header in a giant file": lambda t: put("files", 0, 2, value=1 << 39)(
            put("files", 0, 1, value=1 << 40)(t)
        ),
        "giant shape": put("tensors", "a", 1, value=[1 << 40, 1 << 20]),
        "overflowing shape": put("tensors", "a", 1, value=[1 << 62, 4]),
        "negative shape": put("tensors", "a", 1, value=[-4, -3]),
        "float shape": put("tensors", "a", 1, value=[4.0, 3]),
        "true shape": put("tensors", "a", 1, value=[True, 12]),
        "very many dims": put("tensors", "a", 1, value=[1] * 5000),
        "wrong dtype": put("tensors", "a", 0, value="F99"),
        "dtype is a list": put("tensors", "a", 0, value=["F32"]),
        "another dtype of the same size": put("tensors", "a", 0, value="F64"),
        "offset into the header": put(*block, 1, value=0),
        "offset beyond the end": put(*block, 1, value=1 << 50),
        "overlap in the file": put("tensors", "b/c", 2, 0, 1, value=10**3),
        "file number": put(*block, 0, value=9),
        "file number is true": put(*block, 0, value=True),
        "too few checksums": put(*block, 2, value=""),
        "checksums that are none": put(*block, 2, value="g" * 16),
        "block outside": put("tensors", "a", 2, value=[[0, 0, "0" * 16, [0, 0], [5, 3]]]),
        "block of other dims": put("tensors", "a", 2, value=[[0, 0, "0" * 16, [0], [5]]]),
        "no blocks": put("tensors", "a", 2, value=[]),
        "same block twice": lambda t: put("tensors", "a", 2, value=t["tensors"]["a"][2] * 2)(t),
        "tensor is null": put("tensors", "a", value=None),
        "tensor is a number": put("tensors", "a", value=3),
        "tensors is a list": put("tensors", value=[]),
        "files is null": put("files", value=None),
        "workers": put("workers", value=0),
        "workers is text": put("workers", value="2"),
        "per worker count": put("per_worker", "w", value=10**9),
        "tensor and value": put("values", "a", value=1),
        "values is a list": put("values", value=[1]),
        "version is text": put("format_version", value="1"),
        "no id": lambda t: {k: v for k, v in t.items() if k != "id"},
        "no tensors": lambda t: {k: v for k, v in t.items() if k != "tensors"},
    }


@pytest.mark.parametrize("change", hostile_cases().values(), ids=hostile_cases().keys())
def test_hostile_manifests_are_refused(example: Path, change: Any) -> None:
    for seal in (sealed, sealed_in_lines):
        with pytest.raises(CheckpointDamaged, match=r"manifest\.json"):
            from_bytes(seal(change(tree_of(example))), NAME)


@pytest.mark.parametrize(
    "text",
    [
        '"values":' + "[" * 100_000 + "]" * 100_000,
        '"values":' + '{"a":' * 100_000 + "1" + "}" * 100_000,
        '"values":{"a":1,"a":2}',
        '"values":NaN',
        '"values":' + "9" * 10_000,
        '"values":{',
        '"tensors":{"a":[],"a":[]}',
        '"values":"\ud800"',
    ],
    ids=["deep list", "deep object", "twins", "nan", "long number", "cut short", "twin tensors", "surrogate"],
)
def test_hostile_json_is_refused(text: str) -> None:
    data = ('{"format":"gridwise-checkpoint","format_version":1,\n' + text + ",\n").encode("utf-8", "surrogatepass")
    with pytest.raises(CheckpointDamaged, match=r"manifest\.json"):
        from_bytes(data + f'"checksum":"{checksum(data)}"}}\n'.encode(), NAME)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"l": {"$list": 10**12}}, "10+ items"),
        ({"l": {"$list": "2"}}, "numbered"),
        ({"l": 3}, "stands for two things"),
        ({"a/x": 3}, "lies below 'a'"),
        ({"/".join("x" * 500): 3}, "nested deeper"),
        ({"#x": 3}, "is no name"),
    ],
)
def test_hostile_trees_are_refused(example: Path, tmp_path: Path, values: dict[str, Any], text: str) -> None:
    path = shutil.copytree(example, tmp_path / "c")
    tree = tree_of(path)
    tree["values"] |= values
    (path / "manifest.json").write_bytes(sealed(tree))
    with pytest.raises(CheckpointDamaged, match=text):
        checkpoint.load(path)


def test_a_giant_claim_allocates_nothing(example: Path) -> None:
    tree = tree_of(example)
    tree["tensors"]["a"][1] = [1 << 31, 3]
    tree["files"][0][1] = 1 << 34
    data = sealed(tree)
    tracemalloc.start()
    with pytest.raises(CheckpointDamaged):
        from_bytes(data, NAME)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_strange_files_in_place_of_data(example: Path, tmp_path: Path) -> None:
    path = shutil.copytree(example, tmp_path / "c")
    (file,) = path.glob("data-*/w0.safetensors")
    size = file.stat().st_size
    file.unlink()
    os.mkfifo(file)
    begin = time.monotonic()
    with pytest.raises(CheckpointDamaged, match="no regular file"):
        checkpoint.load(path)
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(CheckpointDamaged, match="is a link"):
        checkpoint.load(path)
    file.unlink()
    file.mkdir()
    with pytest.raises(CheckpointDamaged, match=r"w0\.safetensors"):
        checkpoint.load(path)
    file.rmdir()
    with file.open("wb") as sparse:
        sparse.truncate(size)
    with pytest.raises(CheckpointDamaged, match="header is not the one"):
        checkpoint.load(path)
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")
    with pytest.raises(CheckpointError):
        checkpoint.load(path)
    assert time.monotonic() - begin < 20


def test_pickles_are_never_run(example: Path, tmp_path: Path) -> None:
    path = shutil.copytree(example, tmp_path / "c")
    mark = tmp_path / "ran"
    payload = b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
    for name in ("manifest.json", *(str(f.relative_to(path)) for f in path.glob("data-*/*"))):
        original = (path / name).read_bytes()
        (path / name).write_bytes(payload)
        with pytest.raises(CheckpointDamaged):
            checkpoint.load(path)
        (path / name).write_bytes(original)
    assert not mark.exists()


# Fuzzing

atoms = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.just([])
    | st.just({})
)
shallow = atoms | st.lists(atoms, max_size=4) | st.dictionaries(st.text(max_size=5), atoms, max_size=4)
junk = shallow | st.lists(shallow, max_size=3) | st.dictionaries(st.text(max_size=5), shallow, max_size=3)


def places(tree: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [way] if way else []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, item in items:
        found += places(item, (*way, key))
    return found


def mutated(tree: dict[str, Any], way: tuple[Any, ...], value: Any, how: str) -> dict[str, Any]:
    tree = copy.deepcopy(tree)
    at: Any = tree
    for step in way[:-1]:
        at = at[step]
    if how == "drop":
        del at[way[-1]]
    elif how == "twice" and isinstance(at, list):
        at.insert(way[-1], at[way[-1]])
    else:
        at[way[-1]] = value
    return tree


def read_or_refuse(data: bytes) -> Manifest | None:
    """The one promise: a checked manifest, or `CheckpointDamaged`."""
    try:
        return from_bytes(data, NAME)
    except CheckpointDamaged as error:
        if "manifest.json" not in str(error):
            raise
        return None


def fuzz_once(example: Path, data: st.DataObject) -> None:
    tree = tree_of(example)
    for _ in range(data.draw(st.integers(1, 3))):
        way = data.draw(st.sampled_from(places(tree)))
        tree = mutated(tree, way, data.draw(junk), data.draw(st.sampled_from(["put", "drop", "twice"])))
        if not isinstance(tree, dict) or not places(tree):
            return
    try:
        text = sealed(tree)
    except (ValueError, UnicodeEncodeError):
        return
    manifest = read_or_refuse(text)
    assert read_or_refuse(sealed_in_lines(tree)) == manifest
    if manifest is not None:  # what it claims fits into its files
        assert sum(t.nbytes for t in manifest.tensors.values()) <= manifest.nbytes


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_changes_with_right_checksums(example: Path, data: st.DataObject) -> None:
    fuzz_once(example, data)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_very_many_random_changes(example: Path, data: st.DataObject) -> None:
    fuzz_once(example, data)


@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    assert read_or_refuse(data) is None
    head = b'{"format":"gridwise-checkpoint","format_version":1,\n' + data
    assert read_or_refuse(head + f'"checksum":"{checksum(head)}"}}\n'.encode()) is None


def test_every_single_bit_of_a_manifest(example: Path) -> None:
    original = read_manifest_bytes(example)
    choice = random.Random(1)
    for place in choice.sample(range(len(original) * 8), min(2000, len(original) * 8)):
        damaged = bytearray(original)
        damaged[place // 8] ^= 1 << place % 8
        assert read_or_refuse(bytes(damaged)) is None


def test_reading_in_many_threads(example: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        loaded = list(threads.map(checkpoint.load, [example] * 4))
    expected = checkpoint.load(example)
    for state in loaded:
        assert torch.equal(state["a"], expected["a"])
        assert torch.equal(state["b"]["c"], torch.arange(5))
