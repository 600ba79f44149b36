"""gridwise checkpoint ls | show | verify | convert | prune."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gridwise import checkpoint
from gridwise.cli.checkpoint import app, bytes_in


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def run(*words: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    series = checkpoint.Series(tmp_path / "run", keep_last=None)
    for step in range(1, 5):
        series.save({"model": torch.nn.Linear(3, 2), "step": step, "text": "x" * 200}, step=step)
    left = series.path(5) / f"data-{'a' * 32}"
    left.mkdir(parents=True)
    return tmp_path / "run"


def test_ls(folder: Path) -> None:
    text = run("ls", folder)
    assert "step-0000000004" in text
    assert "not committed" in text
    assert "step-0000000004" in run("ls", folder / "step-0000000004")
    (folder / "step-0000000004" / "manifest.json").write_text("{}")
    assert "is no manifest" in run("ls", folder)
    (folder / "empty").mkdir()
    run("ls", folder / "empty", status=1)


def test_show(folder: Path) -> None:
    text = run("show", folder / "step-0000000002")
    assert "model/weight" in text
    assert "2 x 3" in text
    assert "float32" in text
    assert "step" in text
    assert "no checkpoint" in run("show", folder, status=1)


def test_verify(folder: Path) -> None:
    assert run("verify", folder).count("whole") == 4
    assert "no checkpoints in" in run("verify", folder, folder / "nothing", status=1)
    (file,) = folder.glob("step-0000000003/data-*/*.safetensors")
    damage(file)
    text = run("verify", folder, status=1)
    assert text.count("whole") == 3
    assert "damaged" in text
    assert "w0.safetensors" in text
    assert "model/" in text
    run("verify", folder / "nothing", status=1)


def test_convert(folder: Path, tmp_path: Path) -> None:
    run("convert", folder / "step-0000000001", tmp_path / "m.safetensors", "--prefix", "model")
    run("convert", tmp_path / "m.safetensors", tmp_path / "again")
    assert set(checkpoint.load(tmp_path / "again")) == {"weight", "bias"}
    torch.save({"x": object}, tmp_path / "s.pt")
    assert "trust" in run("convert", tmp_path / "s.pt", tmp_path / "no", status=1)


def test_prune(folder: Path) -> None:
    text = run("prune", folder, "--keep-last", 1, "--keep-every", 2, "--dry-run")
    assert text.count("would remove") == 3
    assert checkpoint.Series(folder).steps() == [1, 2, 3, 4]
    run("prune", folder, "--keep-last", 1, "--keep-every", 2)
    assert checkpoint.Series(folder).steps() == [2, 4]
    assert not list((folder / "step-0000000005").glob("data-*"))


def test_a_folder_of_checkpoints_is_not_shown_as_one(folder: Path) -> None:
    text = run("show", folder, status=1)
    assert "a folder of 4 checkpoints" in text
    assert "gridwise checkpoint ls" in text


def test_a_folder_that_is_not_there_is_not_pruned(tmp_path: Path) -> None:
    text = run("prune", tmp_path / "nope", status=1)
    assert "there is no folder" in text
    assert "stay" not in text
    assert not (tmp_path / "nope").exists()


@pytest.mark.parametrize(("command", "words"), [("show", "A checkpoint."), ("prune", "A folder of checkpoints")])
def test_help_says_what_is_taken(command: str, words: str) -> None:
    assert words in run(command, "--help")


def test_names_are_printed_as_they_are(tmp_path: Path) -> None:
    """Square brackets are markup to rich: a path or a key must neither lose them nor break the command."""
    path = tmp_path / "step [a]"
    checkpoint.save(path, {"heads[bold]": torch.ones(2), "note": "[/red] of [b]"})
    assert "step [a]" in run("ls", tmp_path)
    text = run("show", path)
    assert "heads[bold]" in text
    assert "[/red] of [b]" in text
    assert "step [a]" in run("verify", path)
    assert "nothing [b]" in run("show", tmp_path / "nothing [b]", status=1)
    assert "nothing [b]" in run("convert", tmp_path / "nothing [b]", tmp_path / "x", status=1)


def test_a_folder_that_is_not_there_is_not_listed(tmp_path: Path) -> None:
    assert "there is nothing at" in run("ls", tmp_path / "nowhere", status=1)


def test_a_file_that_must_be_trusted_names_the_option(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save({"path": tmp_path}, file)
    text = run("convert", file, tmp_path / "made", status=1)
    assert "`--trust`" in text
    assert not text.startswith("\n")


def test_names_and_times_are_whole_in_a_pipe(tmp_path: Path) -> None:
    key = "encoder.layers.0." + "block." * 20 + "weight"
    name = "a-run-with-a-name-that-says-what-was-tried-and-when-and-why-it-seemed-a-good-idea"
    checkpoint.save(tmp_path / name, {"model": {key: torch.ones(2, 3)}, "note": "x" * 90})
    written = checkpoint.read_manifest(tmp_path / name).written_at
    (line,) = [line for line in run("ls", tmp_path).splitlines() if line.startswith(name)]
    assert written in line
    text = run("show", tmp_path / name)
    (line,) = [line for line in text.splitlines() if key in line]
    assert "2 x 3" in line
    assert "x" * 90 in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) < 400


def test_convert_to_other_formats(folder: Path, tmp_path: Path) -> None:
    source = folder / "step-0000000001"
    run("convert", source, tmp_path / "hub", "--to", "huggingface", "--prefix", "model", "--shard-size", "8")
    assert (tmp_path / "hub" / "model.safetensors.index.json").exists()
    text = run("show", tmp_path / "hub")
    assert "2 x 3" in text
    assert "2 tensors" in text
    run("convert", tmp_path / "hub", tmp_path / "again")
    assert set(checkpoint.load(tmp_path / "again")) == {"weight", "bias"}
    run("convert", source, tmp_path / "dcp", "--to", "torch.distributed")
    assert (tmp_path / "dcp" / ".metadata").exists()
    assert "'pigeon'" in run("convert", source, tmp_path / "x", "--to", "pigeon", status=1)
    assert "5GiB" in run("convert", "--help")
    assert "'5 miles'" in run("convert", source, tmp_path / "x", "--shard-size", "5 miles", status=1)


@pytest.mark.parametrize(("text", "size"), [("300", 300), ("5GB", 5 * 10**9), ("2MiB", 2 << 20), ("1.5 kb", 1500)])
def test_sizes_with_units(text: str, size: int) -> None:
    assert bytes_in(text) == size


def test_stores(tmp_path: Path) -> None:
    address = f"local://{tmp_path}/run"
    for step in (1, 2):
        checkpoint.Series(address).save({"step": step}, step=step)
    assert "step-0000000002" in run("ls", address)
    assert "0 tensors" in run("show", f"{address}/step-0000000001")
    assert run("verify", address).count("whole") == 2
    assert "removed step-0000000001" in run("prune", address, "--keep-last", "1")
    assert checkpoint.Series(address).steps() == [2]
