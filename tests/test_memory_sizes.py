"""What memory is free: control groups limit it, and files that the system can drop do not count."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gridwise import memory_sizes

CPU = torch.device("cpu")


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory_sizes, "_CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory_sizes, "_OF_PROCESS", tmp_path / "of_process")
    return tmp_path


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_of_", ".", 1)).write_text(text)


def test_groups_around_this_process_limit_what_is_free(groups: Path) -> None:
    _write(groups, of_process="0::/a/b\n")
    _write(
        groups / "a", memory_of_max="5000\n", memory_of_current="3000\n", memory_of_stat="anon 1\ninactive_file 1500\n"
    )
    _write(groups / "a" / "b", memory_of_max="max\n", memory_of_current="10\n")
    assert memory_sizes.free(CPU) == 5000 - 3000 + 1500
    assert memory_sizes.largest.__wrapped__() == 5000


def test_the_older_version_in_a_container_that_does_not_see_its_path(groups: Path) -> None:
    _write(groups, of_process="5:cpu:/x\n4:memory,other:/host/path\n0::/\n")
    _write(
        groups / "memory",
        memory_of_limit_in_bytes="900",
        memory_of_usage_in_bytes="300",
        memory_of_stat="total_inactive_file 100",
    )
    assert memory_sizes.free(CPU) == 700


def test_without_groups_the_system_says_what_is_free(groups: Path) -> None:
    assert memory_sizes.free(CPU) > 1 << 20
    _write(groups, of_process="0::/\n")
    assert memory_sizes.free(CPU) > 1 << 20
