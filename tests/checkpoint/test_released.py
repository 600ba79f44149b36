"""A checkpoint of every released format version stays here, and loads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import line, split
from crew import crew

from gridwise import checkpoint
from gridwise.checkpoint import FORMAT_VERSION
from gridwise.partition import Partition

RELEASED = Path(__file__).with_name("released")


def state(P: Partition, version: int = 1) -> dict[str, Any]:
    """What the checkpoint of a version was made of; never to be changed."""
    own = of_version_1(P)
    if version >= 2:
        own["net again"], own["rows again"] = own["net"], own["rows"]
    return own


def of_version_1(P: Partition) -> dict[str, Any]:
    rank = P.transport.rank
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view(parameter.shape) / 8 + 1)
    return {
        "net": net,
        "rows": split(torch.arange(35.0).view(7, 5), line(P, (7, 5)), rank),
        "columns": split(torch.arange(12, dtype=torch.int64).view(2, 6), line(P, (2, 6), dim=1), rank),
        "kinds": {
            "bf16": torch.arange(4).to(torch.bfloat16),
            "bool": torch.tensor([True, False]),
            "c128": torch.tensor([1 + 2j], dtype=torch.complex128),
            "empty": torch.empty(0, 2),
            "number": torch.tensor(2.5, dtype=torch.float64),
        },
        "list": [torch.ones(2), ("text", torch.zeros(1))],
        "own": checkpoint.PerWorker({"rank": P.rank, "t": torch.full((2,), P.rank)}),
        "values": {
            "a": [1, (2.5, None, True)],
            7: b"bytes",
            "nan": math.nan,
            "c": 1j,
            "d": torch.float16,
            "$": "dollar",
        },
        "a/b~c": {"": "empty name", "#1": "number sign", "@x": "at"},
    }


def make(path: Path) -> None:
    """How the fixture of a new version is made."""
    crew(3, lambda P: checkpoint.save(path, state(P, FORMAT_VERSION), P, metadata={"loss": 0.25, "nan": math.nan}))


def test_every_version_has_a_checkpoint() -> None:
    assert sorted(path.name for path in RELEASED.iterdir()) == [f"v{n}" for n in range(1, FORMAT_VERSION + 1)]


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_released_versions_load(version: int, workers: int) -> None:
    path = RELEASED / f"v{version}"
    checkpoint.verify(path)

    def loads(P: Partition) -> None:
        expected = state(P, version)
        found = state(P, version)
        with torch.no_grad():
            for x in (found["rows"], found["columns"], *found["net"].state_dict().values(), *found["kinds"].values()):
                x.zero_()
        found["own"] = checkpoint.PerWorker(None, when_resized="wrap")
        found["values"] = {}
        found["a/b~c"] = None
        checkpoint.load(path, found, P)
        assert torch.equal(found["rows"], expected["rows"])
        assert torch.equal(found["columns"], expected["columns"])
        for key, value in expected["net"].state_dict().items():
            assert torch.equal(found["net"].state_dict()[key], value)
        for key, value in expected["kinds"].items():
            assert torch.equal(found["kinds"][key], value)
        assert found["own"].value["rank"] == P.rank
        assert math.isnan(found["values"].pop("nan"))
        assert found["values"] == {key: value for key, value in expected["values"].items() if key != "nan"}
        assert found["a/b~c"] == expected["a/b~c"]
        assert found["list"][1][0] == "text"

    crew(workers, loads)


def test_what_is_written_today_is_of_the_newest_version(tmp_path: Path) -> None:
    make(tmp_path / "c")
    assert checkpoint.read_manifest(tmp_path / "c").version == FORMAT_VERSION
    released = checkpoint.read_manifest(RELEASED / f"v{FORMAT_VERSION}")
    today = checkpoint.read_manifest(tmp_path / "c")
    assert today.tensors == released.tensors
    assert today.tied == released.tied
    assert today.metadata == released.metadata
    assert {**today.values, "values/nan": 0} == {**released.values, "values/nan": 0}
