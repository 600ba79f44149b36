"""Results in files: what is written, and that failures leave nothing that looks whole, and no files of the store."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise.data.sources.source import Source
from gridwise.errors import DataError, PartitionError, UnsupportedError
from gridwise.grid import Box
from gridwise.grid.row_major import flat_span
from gridwise.tiles.arrays import SPAN, InFile

from .equality import same

VOLUME = np.random.default_rng(0).normal(size=(6, 20, 21))


class Three(nn.Module):
    """Three segments, the last of which looks numbers up in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(1, 2, 3, padding=1), nn.InstanceNorm3d(2)
        self.second, self.table = nn.Conv3d(2, 2, 3, padding=1), nn.Embedding(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.norm(self.first(x))).sum(1).abs()
        return self.table((y > y.mean()).long())


def unet() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.InstanceNorm3d(2), nn.Conv3d(2, 1, 3, padding=1)).double()


@pytest.mark.parametrize("ending", [".npy", ".zarr", ".h5"])
def test_a_result_in_a_new_file_has_the_dims_of_the_file_that_was_read(ending: str, tmp_path: Path) -> None:
    np.save(tmp_path / "volume.npy", VOLUME)
    model, path = unet(), tmp_path / f"result{ending}"
    big = gridwise.tiled(model, tile=(5, 8, 8))
    assert big(tmp_path / "volume.npy", out=path) == path
    found = gridwise.data.open_array(path)
    assert found.shape == VOLUME.shape
    read = np.empty(found.shape)
    found.read((slice(0, 6), slice(0, 20), slice(0, 21)), read)
    with torch.no_grad():
        same(torch.from_numpy(read), model(torch.from_numpy(VOLUME)[None, None])[0, 0], 1e-10)
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, "volume.npy"]
    with pytest.raises(DataError, match="is there already"):
        big(VOLUME, out=str(path))
    gridwise.tiled(model, tile=7, overwrite=True)(torch.zeros(1, 1, 6, 20, 21).double(), out=str(path))
    assert gridwise.data.open_array(path).shape == (1, 1, 6, 20, 21)


def test_several_results_and_numbers_that_files_do_not_have(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x.bfloat16() * 2, x.mean()

    x, mean = torch.rand(2, 3, 9), torch.zeros(())
    gridwise.tiled(Two(), tile=4)(x, out=[tmp_path / "twice.zarr", mean])
    twice = gridwise.data.open_array(tmp_path / "twice.zarr")
    assert twice.dtype == np.float32
    same(mean, x.mean(), 1e-6)
    gridwise.tiled(lambda x: x.mean(), tile=4)(x, out=tmp_path / "mean.npy")
    same(torch.from_numpy(np.load(tmp_path / "mean.npy")), x.mean(), 1e-6)
    with pytest.raises(DataError, match="address of a store"):
        gridwise.tiled(nn.ReLU())(x, out="s3://bucket/y.zarr")
    with pytest.raises(UnsupportedError, match="files cannot hold"):
        gridwise.tiled(lambda x: x.to(torch.float8_e5m2))(x, out=tmp_path / "y.npy")


def test_arrays_that_cannot_take_the_numbers_are_refused_before_anything_runs() -> None:
    x, fixed = torch.rand(3, 9), np.zeros((3, 9), np.float32)
    big = gridwise.tiled(nn.ReLU(), tile=4)
    for out in (np.zeros((3, 9), np.int16), torch.zeros(3, 9, dtype=torch.int64)):
        with pytest.raises(
            PartitionError, match=r"`out` holds torch.int\d+, which cannot take the output's torch.float32"
        ):
            big(x, out=out)
    fixed.flags.writeable = False
    with pytest.raises(PartitionError, match="cannot be written to"):
        big(x, out=fixed)
    half = np.zeros((3, 9), np.float16)
    big(x, out=half)
    same(torch.from_numpy(half).float(), x, 1e-3)


class Failing(Source):
    """A volume of which reading fails in the second pass."""

    def __init__(self, failure: Any) -> None:
        self.label, self.shape, self.dtype, self.failure, self.left = "a volume", VOLUME.shape, VOLUME.dtype, failure, 9

    def _read(self, slices: Any, out: np.ndarray) -> None:
        out[...] = VOLUME[slices]
        self.left -= 1
        if not self.left:
            self.failure()


def _unreadable() -> None:
    raise OSError("unreadable")


@pytest.mark.parametrize("ending", [".npy", ".zarr", ".h5"])
@pytest.mark.parametrize(
    ("failure", "raised", "says"),
    [
        (_unreadable, DataError, "a volume cannot be read: OSError: unreadable"),
        (lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt, None),
    ],
)
def test_failures_in_the_middle_leave_no_files(
    failure: Any, raised: Any, says: str | None, ending: str, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    big = gridwise.tiled(unet(), tile=(3, 8, 8), store=tmp_path / "store")
    with pytest.raises(raised, match=says):
        big(Failing(failure), out=tmp_path / f"result{ending}")
    assert [each.name for each in tmp_path.iterdir()] == ["store"]
    assert not [*(tmp_path / "store").iterdir()]


def test_a_model_that_fails_in_its_third_segment_leaves_no_files_and_names_the_operator(tmp_path: Path) -> None:
    model = Three().double()
    big = gridwise.tiled(model, tile=(3, 8, 8), store=tmp_path)
    with torch.no_grad():
        model.table.weight = nn.Parameter(model.table.weight[:1])  # so that numbers are looked up that it lacks
    with pytest.raises(IndexError, match="index out of range") as caught:
        big(VOLUME[None], out=tmp_path / "result.zarr")
    assert "while computing tiles of embedding" in "".join(caught.value.__notes__)
    assert not [*tmp_path.iterdir()]


def test_a_chunk_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    source = zarr.create_array(tmp_path / "volume.zarr", shape=VOLUME.shape, chunks=(3, 10, 11), dtype="float64")
    source[:] = VOLUME
    chunk = tmp_path / "volume.zarr" / "c" / "1" / "1" / "1"
    chunk.write_bytes(chunk.read_bytes()[:-7])
    with pytest.raises(DataError, match=r"volume\.zarr"):
        gridwise.tiled(unet(), tile=(3, 8, 8))(tmp_path / "volume.zarr", out=tmp_path / "result.zarr")
    assert [each.name for each in tmp_path.iterdir()] == ["volume.zarr"]


@pytest.mark.parametrize("ending", [".npy", ".zarr", ".h5"])
def test_a_full_disk_leaves_no_file(ending: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    noise = np.random.default_rng(1).normal(size=(1, 40, 40, 40)).astype(np.float32)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = gridwise.tiled(nn.Conv3d(1, 1, 3, padding=1), tile=(20, 20, 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # no file may be larger
    try:
        with pytest.raises(DataError, match=rf"result\{ending} cannot be written: "):
            big(noise, out=tmp_path / f"result{ending}")
        wide = gridwise.tiled(
            nn.Sequential(nn.Conv3d(1, 8, 3), nn.InstanceNorm3d(8)), memory="9MiB", store=tmp_path / "store"
        )
        with pytest.raises(DataError, match=r"(?s)the store in .* has no room.*fix: store="):
            wide(noise)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each.name for each in tmp_path.iterdir()] == ["store"]
    assert not [*(tmp_path / "store").iterdir()]


def test_boxes_of_short_rows_in_a_file_map_few_of_its_pages_at_a_time(tmp_path: Path) -> None:
    array = InFile((64, 64, 512), torch.float32, tmp_path)  # 8 MiB
    whole = torch.rand(array.shape)
    array.write(Box.of_shape(array.shape), whole)
    box = Box((0, 1, 3), (64, 63, 12))
    assert (
        max(flat_span(array.shape, part)[1] - flat_span(array.shape, part)[0] for part in array._pieces(box))
        <= SPAN // 4
    )
    same(array.read(box, torch.device("cpu")), whole[box.slices], 0)
    array.write(box, -whole[box.slices])
    array.add(box, 3 * whole[box.slices])
    whole[box.slices] *= 2
    same(array.read(Box.of_shape(array.shape), torch.device("cpu")), whole, 1e-6)
    array.release()


def test_a_killed_process_leaves_nothing_that_looks_whole_and_no_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    program = """
        import os, signal, sys
        from pathlib import Path
        import gridwise
        from tests.tiles.test_targets import Failing, unet
        folder = Path(sys.argv[1])
        def die():
            assert (folder / "result.zarr.partial").exists()
            os.kill(os.getpid(), signal.SIGKILL)
        gridwise.tiled(unet(), tile=(3, 8, 8), store=folder / "store")(Failing(die), out=folder / "result.zarr")
    """
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], cwd=root, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert sorted(each.name for each in tmp_path.iterdir()) == ["result.zarr.partial", "store"]
    assert not [*(tmp_path / "store").iterdir()]
    gridwise.tiled(unet(), tile=(3, 8, 8))(VOLUME, out=tmp_path / "result.zarr")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["result.zarr", "store"]
