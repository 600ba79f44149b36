"""Data files that are open: what the system holds in memory goes to many addresses in one call, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gridwise import checkpoint
from gridwise.checkpoint.format.manifest_parser import read_manifest
from gridwise.checkpoint.reading import open_file
from gridwise.checkpoint.reading.open_file import DataFile, open_checked


def test_many_places_in_one_call(tmp_path: Path) -> None:
    saved = {f"t{i}": torch.full((i + 1,), float(i)) for i in range(100)}
    checkpoint.save(tmp_path / "c", saved)
    manifest = read_manifest(tmp_path / "c")
    path = tmp_path / "c" / manifest.folder / "w0.safetensors"
    file = DataFile(open_checked(path, manifest.files[0], "t0", manifest.id), manifest.files[0])
    places = [torch.zeros(i + 1) for i in range(100)]
    addresses, sizes = (np.array(column) for column in zip(*[(x.data_ptr(), x.nbytes) for x in places], strict=True))
    start = manifest.files[0].header
    try:
        if not file.read_cached(start, addresses, sizes):
            pytest.skip("this system does not say what it holds in memory")
        assert all(torch.equal(x, saved[f"t{i}"]) for i, x in enumerate(places))
        assert not file.read_cached(start + 4, addresses, sizes)  # it ends too early
    finally:
        file.close()


@pytest.mark.parametrize("name", ["preadv2", "NOWAIT"])
def test_a_system_without_it_reads_and_compares_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    saved = {f"t{i}": torch.full((i + 1,), float(i)) for i in range(100)}
    checkpoint.save(tmp_path / "c", saved)
    monkeypatch.setattr(open_file, name, None)
    into = {key: torch.zeros_like(value) for key, value in saved.items()}
    checkpoint.load(tmp_path / "c", into)
    assert all(torch.equal(into[key], saved[key]) for key in saved)
