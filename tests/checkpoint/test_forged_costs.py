"""Forged checkpoints, with checksums made to fit, are refused in little time and memory."""

from __future__ import annotations

import gc
import os
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
from gridwise.checkpoint.reading.open_file import DataFile
from gridwise.errors import CheckpointDamaged, CheckpointError


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
