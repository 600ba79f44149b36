"""Addresses of stores are refused wherever only files will do, or no driver is there; no folder of that name appears."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch

import gridwise
from gridwise import checkpoint
from gridwise.errors import CheckpointNotFound, GridwiseError
from gridwise.local_path import local_path
from gridwise.planning.page import save_page
from gridwise.show.owners import saved
from gridwise.testing import workers

STATE = {"x": torch.ones(2)}


def writer(path: str) -> object:
    P = gridwise.world().create_cartesian_topology_partition([1, 1])
    return gridwise.data.BlockWriter(path, (4, 2), P)


CHECKPOINTS: dict[str, Callable[[str], object]] = {
    "save": lambda path: checkpoint.save(path, STATE),
    "save to a Path": lambda path: checkpoint.save(Path(path), STATE),
    "async_save": lambda path: checkpoint.async_save(path, STATE),
    "load": lambda path: checkpoint.load(path, STATE),
    "read": checkpoint.read,
    "verify": checkpoint.verify,
    "show": checkpoint.show,
    "convert from": lambda path: checkpoint.convert(path, "here.safetensors"),
    "convert to": lambda path: checkpoint.convert("whole.safetensors", path),
    "Series": lambda path: checkpoint.Series(path).latest(),
    "save_state_dict": lambda path: checkpoint.save_state_dict(STATE, checkpoint.FileSystemWriter(path)),
}
"""What is done in any store that fsspec has a driver for; here it has none."""

FILES_ONLY: dict[str, Callable[[str], object]] = {
    "export": lambda path: checkpoint.export(path, STATE),
    "convert to one file": lambda path: checkpoint.convert("whole", f"{path}.safetensors"),
    "BlockWriter": lambda path: writer(f"{path}.npy"),
    "open_array": gridwise.data.open_array,
    "trace": gridwise.trace,
    "a page": lambda path: save_page(path, None),  # type: ignore[arg-type]
    "a picture": lambda path: saved(None, path),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(
    ("call", "scheme"),
    [*product(FILES_ONLY, ("s3", "gs", "memory", "file")), *product(CHECKPOINTS, ("nowhere", "simplecache::s3"))],
)
def test_addresses_are_refused(call: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint.save("whole", STATE)
    checkpoint.convert("whole", "whole.safetensors")
    with pytest.raises(GridwiseError, match=f"{scheme}:/") as caught:
        (FILES_ONLY | CHECKPOINTS)[call](f"{scheme}://bucket/run")
    assert not isinstance(caught.value, CheckpointNotFound), "a script that starts anew if nothing is there must not"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["whole", "whole.safetensors"]


@workers(2)
def test_an_address_on_one_worker_is_an_error_on_all(tmp_path):
    for address in range(2):
        path = "nowhere://bucket/run" if gridwise.world().rank == address else tmp_path / "run"
        with pytest.raises(gridwise.errors.CheckpointError):
            checkpoint.save(path, STATE)
        with pytest.raises(gridwise.errors.CheckpointError):
            checkpoint.load(path, STATE)


def test_paths_are_paths() -> None:
    for path in ("run", "/a/b", "./s3:/x", "a:b", "C:/x", "x/s3://y", Path("run/step:1")):
        assert local_path(path) == Path(path)
