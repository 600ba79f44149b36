"""The manifest that the first worker makes of what all have told: every line is one that alone could be right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import line, split
from crew import crew, crew_errors

from gridwise import checkpoint
from gridwise.checkpoint import PerWorker
from gridwise.checkpoint.format.manifest import StoredFile, to_bytes
from gridwise.checkpoint.format.manifest_parser import read_manifest, read_manifest_bytes
from gridwise.checkpoint.writing import saving
from gridwise.checkpoint.writing.manifest_assembly import WrittenPart
from gridwise.errors import CheckpointError, CheckpointMismatch
from gridwise.partition import Partition

NAMES = ["plain", 'quo"te":["', "line\nfeed", "back\\slash", "ünicode", "\ud800", "null\0", "#", "@0", "", "a/b~"]


def mixed(P: Partition) -> dict[str, Any]:
    """Whole here, whole there, in blocks, empty, of several element sizes; the second worker writes nothing of its own."""
    own: dict[str, Any] = {name: torch.full((n + 1,), P.rank) for n, name in enumerate(NAMES)}
    own |= {"empty": torch.zeros(0, 3), "byte": torch.ones(5, dtype=torch.int8), "last": torch.ones(2)}
    return {
        "z": torch.ones(3, dtype=torch.float64),
        "split": split(torch.arange(60.0).view(12, 5), line(P, (12, 5)), P.transport.rank),
        "a": {name: torch.full((2,), n, dtype=torch.int16) for n, name in enumerate(NAMES)},
        "none": torch.zeros(4, 0),
        "own": PerWorker(own if P.rank != 1 else {"nothing": 1}),
    }


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_lines_that_others_have_prepared_are_those_of_the_manifest(tmp_path: Path, workers: int) -> None:
    crew(workers, lambda P: checkpoint.save(tmp_path / "c", mixed(P), P))
    data = read_manifest_bytes(tmp_path / "c")
    assert to_bytes(read_manifest(tmp_path / "c")) == data
    checkpoint.verify(tmp_path / "c")
    names = [key.split("/") for key in json.loads(data)["tensors"]]
    expected = [["z"], ["split"], *[["a"]] * len(NAMES), ["none"]]
    expected += [["own", f"@{place}"] for place in range(workers) if place != 1 for _ in range(len(NAMES) + 3)]
    assert [name[: len(start)] for name, start in zip(names, expected, strict=True)] == expected
    found = checkpoint.load(tmp_path / "c")
    assert torch.equal(found["split"], torch.arange(60.0).view(12, 5))
    for place in range(workers):
        if place != 1:
            assert list(found["own"][place]) == [*NAMES, "empty", "byte", "last"]
            assert [int(x[-1]) for x in list(found["own"][place].values())[: len(NAMES)]] == [place] * len(NAMES)


X = ["F32", [3]]


def twin(part: WrittenPart) -> WrittenPart:
    return replace(part, own={**part.own, "own/@0/x": X}, blocks=[*part.blocks, ["own/@0/x", None, 0, "0" * 16]])


def one_that_all_hold(part: WrittenPart) -> WrittenPart:
    return replace(part, own={**part.own, "a": X})


def other_kind(part: WrittenPart) -> WrittenPart:
    return replace(part, own={**part.own, "own/@0/x": ["F32", [7]]})


def block_of_another(part: WrittenPart) -> WrittenPart:
    return replace(part, blocks=[*part.blocks, ["own/@0/x", [[0], [1]], 0, "0" * 16]])


def nobody_wrote(part: WrittenPart) -> WrittenPart:
    return replace(part, blocks=[block for block in part.blocks if block[0] != "own/@1/x"])


def replica_of_another(part: WrittenPart) -> WrittenPart:
    return replace(part, own={**part.own, "own/@0/x": X}, replicas=[["own/@0/x", None, "0" * 16]])


def too_many(part: WrittenPart) -> WrittenPart:
    shared = [block[0] for block in part.blocks if block[0] in ("a", "b")]
    other = "b" if shared == ["a"] else "a"
    return replace(part, blocks=[*part.blocks, [other, None, 0, "0" * 16]])


FALSE: list[tuple[Any, type[CheckpointError], str]] = [
    (twin, CheckpointMismatch, "'own/@0/x' that the workers hold overlap"),
    (one_that_all_hold, CheckpointMismatch, "'a' is .* on one worker and .* on another"),
    (other_kind, CheckpointMismatch, "'own/@0/x' is .* on one worker and .* on another"),
    (block_of_another, CheckpointMismatch, "'own/@0/x' that the workers hold overlap"),
    (nobody_wrote, CheckpointMismatch, "'own/@1/x' that the workers hold hold 0 of 3 elements"),
    (replica_of_another, CheckpointMismatch, "the replica of 'own/@0/x' whole on worker 1 differs"),
    (too_many, CheckpointMismatch, "'[ab]' that the workers hold overlap"),
]


@pytest.mark.parametrize(("change", "kind", "text"), FALSE)
@pytest.mark.parametrize("way", ["save", "async_save"])
def test_a_worker_that_tells_of_what_is_another_ones_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, change: Any, kind: type[CheckpointError], text: str
) -> None:
    def body(P: Partition) -> None:
        own = PerWorker({"x": torch.full((3,), float(P.rank)), "y": torch.ones(1)})
        done = getattr(checkpoint, way)(tmp_path / "c", {"a": torch.ones(2), "b": torch.ones(2), "own": own}, P)
        if way == "async_save":
            done.wait()

    crew(2, body)
    before = read_manifest_bytes(tmp_path / "c")
    real = saving.written_part
    monkeypatch.setattr(saving, "written_part", lambda *given: change(real(*given)) if given[2] == 1 else real(*given))
    errors = crew_errors(2, body)
    assert {type(error) for error in errors} == {kind}, errors
    assert len({str(error) for error in errors}) == 1
    with pytest.raises(kind, match=text):
        raise errors[0]  # type: ignore[misc]
    assert read_manifest_bytes(tmp_path / "c") == before
    assert len(list((tmp_path / "c").glob("data-*"))) == 1


def other_size(part: WrittenPart) -> WrittenPart:
    assert part.file is not None
    return replace(part, file=part.file._replace(size=9))


@pytest.mark.parametrize(
    ("change", "text"), [(replica_of_another, "on worker 2 differs"), (other_size, "worker 2 has written")]
)
def test_errors_name_workers_by_their_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, text: str
) -> None:
    real = saving.written_part
    monkeypatch.setattr(saving, "written_part", lambda *given: change(real(*given)) if given[2] == 1 else real(*given))

    def body(P: Partition) -> None:
        state = {"own": PerWorker({"x": torch.full((3,), float(P.rank))})}
        checkpoint.save(tmp_path / "c", state, P.create_partition_inclusive([1, 2]))

    inactive, *errors = crew_errors(3, body)
    assert inactive is None
    assert all(text in str(error) for error in errors), errors


def test_what_is_told_arrives() -> None:
    blocks = [["\ud800", None, 272, "0" * 16], ["y", [[0, 1], [2, 3]], 300, ""]]
    part = WrittenPart(StoredFile("w0.safetensors", 9, 8, "0" * 16), {"y": X}, blocks, {"k": 1.5}, "", [])
    assert WrittenPart.from_bytes(part.to_bytes()) == part
