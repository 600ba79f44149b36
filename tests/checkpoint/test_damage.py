"""Damaged checkpoints: every corruption is noticed before anything is changed, and the file and tensor are named."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from blocks import line, split
from crew import crew, crew_errors
from torch import Tensor

from gridwise import checkpoint
from gridwise.checkpoint.reading import open_file, reader
from gridwise.checkpoint.reading.open_file import DataFile
from gridwise.errors import CheckpointDamaged, CheckpointError, CheckpointNotFound
from gridwise.partition import Partition

SHAPES = {"w": (40, 30), "large": (600, 700), "bias": (30,), "tiny": (), "ids": (17,)}


def values(seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {key: torch.randn(shape, generator=g) for key, shape in SHAPES.items()}


def state(P: Partition, whole: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        key: split(x, line(P, tuple(x.shape)), P.transport.rank) if key in ("w", "large") else x.clone()
        for key, x in whole.items()
    }


@pytest.fixture(scope="module")
def two_saves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("saves")
    for name, seed in (("one", 1), ("two", 2)):
        crew(3, lambda P, n=name, s=seed: checkpoint.save(folder / n, state(P, values(s)), P))
    return folder / "one", folder / "two"


# Each corruption changes the checkpoint at `path` and returns a word that the error must contain


def files_of(path: Path) -> list[Path]:
    return sorted(path.glob("data-*/*.safetensors"))


def flip_bit(path: Path, other: Path, choice: random.Random) -> str:
    file = choice.choice([*files_of(path), path / "manifest.json"])
    data = bytearray(file.read_bytes())
    place = choice.randrange(len(data) * 8)
    data[place // 8] ^= 1 << place % 8
    file.write_bytes(data)
    return file.name


def overwrite(path: Path, other: Path, choice: random.Random) -> str:
    file = choice.choice(files_of(path))
    data = bytearray(file.read_bytes())
    start = choice.randrange(len(data) - 64)
    length = choice.randint(1, 5000)
    before = bytes(data[start : start + length])
    data[start : start + length] = choice.randbytes(len(before))
    assert bytes(data[start : start + length]) != before
    file.write_bytes(data)
    return file.name


def truncate(path: Path, other: Path, choice: random.Random) -> str:
    file = choice.choice([*files_of(path), path / "manifest.json"])
    data = file.read_bytes()
    file.write_bytes(data[: choice.randrange(len(data))])
    return file.name


def lengthen(path: Path, other: Path, choice: random.Random) -> str:
    file = choice.choice([*files_of(path), path / "manifest.json"])
    file.write_bytes(file.read_bytes() + choice.randbytes(choice.randint(1, 100)))
    return file.name


def remove(path: Path, other: Path, choice: random.Random) -> str:
    file = choice.choice([*files_of(path), path / "manifest.json"])
    file.unlink()
    return file.name


def swap(path: Path, other: Path, choice: random.Random) -> str:
    one, two = choice.sample(files_of(path), 2)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    return "safetensors"


def mix(path: Path, other: Path, choice: random.Random) -> str:
    """A file of another save with the same shapes: same sizes, other values, another id."""
    place = choice.randrange(3)
    shutil.copy(files_of(other)[place], files_of(path)[place])
    return files_of(path)[place].name


def mix_values_only(path: Path, other: Path, choice: random.Random) -> str:
    """The data of another save under our own header."""
    place = choice.randrange(3)
    mine, theirs = files_of(path)[place], files_of(other)[place]
    data = mine.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    mine.write_bytes(data[:header] + theirs.read_bytes()[header:])
    return mine.name


def manifest_of_another(path: Path, other: Path, choice: random.Random) -> str:
    shutil.copy(other / "manifest.json", path / "manifest.json")
    return "missing"


def edit_manifest(path: Path, other: Path, choice: random.Random) -> str:
    text = (path / "manifest.json").read_text()
    numbers = list(re.finditer(r"[0-9a-f]", text))
    place = choice.choice(numbers)
    changed = text[: place.start()] + choice.choice([d for d in "0123456789" if d != place[0]]) + text[place.end() :]
    (path / "manifest.json").write_text(changed)
    return "manifest.json"


CORRUPTIONS: list[Callable[[Path, Path, random.Random], str]] = [
    flip_bit,
    overwrite,
    truncate,
    lengthen,
    remove,
    swap,
    mix,
    mix_values_only,
    manifest_of_another,
    edit_manifest,
]


def check(tmp_path: Path, two_saves: tuple[Path, Path], seed: int) -> None:
    choice = random.Random(seed)
    corrupt = CORRUPTIONS[seed % len(CORRUPTIONS)]
    path = shutil.copytree(two_saves[0], tmp_path / f"c{seed}")
    word = corrupt(path, two_saves[1], choice)
    with pytest.raises(CheckpointError):
        checkpoint.verify(path)
    workers = choice.randint(1, 3)
    touched: list[bool] = []

    def loads(P: Partition) -> None:
        into = state(P, {key: torch.full_like(x, 7.0) for key, x in values(1).items()})
        try:
            checkpoint.load(path, into, P)
        finally:
            touched.append(any((x != 7.0).any() for x in into.values()))

    errors = crew_errors(workers, loads)
    assert len({str(error) for error in errors}) == 1, errors
    assert isinstance(errors[0], CheckpointDamaged | CheckpointNotFound), (corrupt.__name__, errors[0])
    assert not any(touched), corrupt.__name__
    text = str(errors[0])
    assert word in text, (corrupt.__name__, text)
    if "safetensors" in word or word == "missing":
        assert any(repr(key) in text for key in SHAPES), text
    shutil.rmtree(path)


@pytest.mark.parametrize("tenth", range(10))
def test_random_corruptions_are_noticed_before_anything_changes(
    tmp_path: Path, two_saves: tuple[Path, Path], tenth: int
) -> None:
    for seed in range(10 * tenth, 10 * tenth + 10):
        check(tmp_path, two_saves, seed)


@pytest.mark.soak
@pytest.mark.parametrize("hundred", range(10))
def test_a_thousand_corruptions(tmp_path: Path, two_saves: tuple[Path, Path], hundred: int) -> None:
    for seed in range(1000 + 100 * hundred, 1100 + 100 * hundred):
        check(tmp_path, two_saves, seed)


def test_damage_that_this_worker_does_not_read_does_not_concern_it(
    tmp_path: Path, two_saves: tuple[Path, Path]
) -> None:
    path = shutil.copytree(two_saves[0], tmp_path / "c")
    manifest = checkpoint.read_manifest(path)
    block = manifest.tensors["large"].blocks[-1]
    file = path / manifest.folder / manifest.files[block.file].name
    data = bytearray(file.read_bytes())
    data[block.offset] ^= 1
    file.write_bytes(data)
    bias = torch.zeros(30)
    checkpoint.load(path, {"bias": bias})
    assert torch.equal(bias, values(1)["bias"])
    with pytest.raises(CheckpointDamaged, match="'large'"):
        checkpoint.verify(path)


def test_a_copy_and_a_moved_checkpoint_load(tmp_path: Path, two_saves: tuple[Path, Path]) -> None:
    shutil.copytree(two_saves[0], tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / "moved")
    assert torch.equal(checkpoint.load(tmp_path / "moved")["w"], values(1)["w"])


def test_an_error_while_filling_says_that_the_state_is_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path / "c", {"x": torch.ones(100_000)})
    real = reader.Reader.fill

    def damaged_meanwhile(self: reader.Reader) -> None:
        time.sleep(0.05)  # some systems count the time of a change in steps of several milliseconds
        (file,) = (tmp_path / "c").glob("data-*/*.safetensors")
        with file.open("r+b") as opened:
            opened.seek(-1, 2)
            opened.write(b"!")
        real(self)

    monkeypatch.setattr(reader.Reader, "fill", damaged_meanwhile)
    with pytest.raises(CheckpointDamaged, match="has changed since"):
        checkpoint.load(tmp_path / "c", {"x": torch.zeros(100_000)})


def test_a_file_that_is_only_touched_while_it_is_filled_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path / "c", {"x": torch.ones(3_000_000), "y": torch.ones(3)})
    monkeypatch.setattr(DataFile, "has_changed", lambda self: True)
    into = {"x": torch.zeros(3_000_000), "y": torch.zeros(3)}
    checkpoint.load(tmp_path / "c", into)
    assert all(x.all() for x in into.values())


def test_a_file_that_is_cut_short_while_it_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is open and was long enough: touching what is gone would end the process, were it not asked for first."""
    checkpoint.save(tmp_path / "c", {"x": torch.ones(3_000_000)})
    real = reader.Reader.check

    def cut_meanwhile(self: reader.Reader) -> None:
        (file,) = (tmp_path / "c").glob("data-*/*.safetensors")
        with file.open("r+b") as opened:
            opened.truncate(5_000_000)
        real(self)

    monkeypatch.setattr(reader.Reader, "check", cut_meanwhile)
    monkeypatch.setattr(open_file, "is_cached", lambda *_: True)
    into = {"x": torch.zeros(3_000_000)}
    with pytest.raises(CheckpointDamaged, match="bytes are missing"):
        checkpoint.load(tmp_path / "c", into)
    assert not into["x"].any()
