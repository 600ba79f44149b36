"""Arrays in stores: the numbers that are there, only the ranges that are asked for, and errors that name the address."""

from __future__ import annotations

import pickle

import fsspec
import h5py
import nibabel
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem

from gridwise.data import BlockDataset, BlockLoader, open_array
from gridwise.data.sources.stores import runs_of
from gridwise.errors import DataError

WHOLE = np.random.default_rng(0).normal(size=(4, 6, 40, 50)).astype("f4")
BOXES = (
    np.s_[0:4, 0:6, 0:40, 0:50],
    np.s_[1:3, 2:5, 7:8, 3:49],
    np.s_[3:4, 0:6, 0:40, 0:50],
    np.s_[0:0, 0:1, 0:1, 0:1],
)


def npy(path):
    np.save(path / "a.npy", WHOLE)
    return "a.npy"


def fortran(path):
    np.save(path / "a.npy", np.asfortranarray(WHOLE.astype(">f4")))
    return "a.npy"


def hdf5(path):
    with h5py.File(path / "a.h5", "w") as file:
        file.create_dataset("x", data=WHOLE, chunks=(1, 3, 20, 25), compression="gzip")
    return "a.h5"


def zarr_3(path):
    zarr.create_array(path / "a.zarr", shape=WHOLE.shape, chunks=(1, 3, 20, 25), dtype="f4")[:] = WHOLE
    return "a.zarr"


def zarr_2(path):
    zarr.create_array(path / "a.zarr", shape=WHOLE.shape, chunks=(1, 3, 20, 25), dtype="f4", zarr_format=2)[:] = WHOLE
    return "a.zarr"


@pytest.fixture
def store():
    yield fsspec.filesystem("memory")
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def put(make, tmp_path, store):
    """What `make` writes into a folder, in a store of the memory; its address."""
    name = make(tmp_path)
    for path in (tmp_path / name).rglob("*") if (tmp_path / name).is_dir() else [tmp_path / name]:
        if path.is_file():
            store.pipe_file(f"/bucket/{path.relative_to(tmp_path)}", path.read_bytes())
    return f"memory://bucket/{name}"


@pytest.mark.parametrize("make", [npy, fortran, hdf5, zarr_3, zarr_2])
def test_boxes_are_those_of_the_array(make, tmp_path, store):
    address = put(make, tmp_path, store)
    path = f"{tmp_path}/{address.rpartition('/')[2]}"
    for given in (address, f"local://{path}", f"file://{path}"):
        source = pickle.loads(pickle.dumps(open_array(given)))
        assert source.shape == WHOLE.shape
        assert source.dtype == WHOLE.dtype
        for box in BOXES:
            out = np.empty(WHOLE[box].shape, "f4")
            source.read(box, out)
            assert np.array_equal(out, WHOLE[box])


def test_a_dataset_reads_them_ahead(tmp_path, store):
    address = put(npy, tmp_path, store)
    loader = BlockLoader(BlockDataset(address, (1, 1, 1, 1)), batch_size=3, readers=2)
    assert np.array_equal(np.concatenate(list(loader)), WHOLE)


def test_only_the_ranges_are_fetched(tmp_path, store, monkeypatch):
    np.save(tmp_path / "a.npy", np.zeros((8, 256, 1024), "f4"))  # 8 MiB
    store.pipe_file("/bucket/a.npy", (tmp_path / "a.npy").read_bytes())
    source, fetched = open_array("memory://bucket/a.npy"), []
    cat = MemoryFileSystem.cat_ranges

    def counted(self, paths, starts, ends, **options):
        fetched.extend(zip(starts, ends, strict=True))
        return cat(self, paths, starts, ends, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_ranges", counted)
    source.read(np.s_[2:3, 0:256, 0:1024], np.empty((1, 256, 1024), "f4"))
    assert [end - start for start, end in fetched] == [1 << 20]
    fetched.clear()
    source.read(np.s_[0:8, 0:1, 0:10], np.empty((8, 1, 10), "f4"))
    assert [end - start for start, end in fetched] == [40] * 8
    fetched.clear()
    source.read(np.s_[0:1, 0:4, 0:10], np.empty((1, 4, 10), "f4"))
    assert [end - start for start, end in fetched] == [3 * 4096 + 40], "near ones come as one"


def test_runs_of_a_box():
    starts, length = runs_of((slice(0, 2), slice(1, 3), slice(0, 5)), (2, 4, 5))
    assert (starts.tolist(), length) == ([5, 25], 10)
    starts, length = runs_of((slice(0, 2), slice(0, 4), slice(0, 5)), (2, 4, 5))
    assert (starts.tolist(), length) == ([0], 40)
    starts, length = runs_of((), ())
    assert (starts.tolist(), length) == ([0], 1)


def test_what_is_damaged_or_missing_is_named(tmp_path, store):
    address = put(npy, tmp_path, store)
    source, whole = open_array(address), store.cat_file("/bucket/a.npy")
    store.pipe_file("/bucket/a.npy", whole[:-1])
    with pytest.raises(DataError, match=r"memory://bucket/a\.npy ends too early"):
        open_array(address)
    with pytest.raises(DataError, match=r"memory://bucket/a\.npy ends too early"):
        source.read(np.s_[0:4, 0:6, 0:40, 0:50], np.empty_like(WHOLE))
    with pytest.raises(DataError, match=r"memory://bucket/nothing\.npy cannot be read: FileNotFoundError"):
        open_array("memory://bucket/nothing.npy")
    nibabel.save(nibabel.Nifti1Image(WHOLE, np.eye(4)), tmp_path / "a.nii")
    store.pipe_file("/bucket/a.nii", (tmp_path / "a.nii").read_bytes())
    with pytest.raises(DataError, match=r"memory://bucket/a\.nii is no object that can be read block by block"):
        open_array("memory://bucket/a.nii")


def test_a_truncated_chunk_of_blosc_is_noticed(tmp_path, store):
    def blosc(path):
        codec = zarr.codecs.BloscCodec(cname="lz4")
        array = zarr.create_array(
            path / "a.zarr", shape=WHOLE.shape, chunks=WHOLE.shape, dtype="f4", compressors=[codec]
        )
        array[:] = WHOLE
        return "a.zarr"

    address = put(blosc, tmp_path, store)
    (chunk,) = [name for name in store.find("/bucket") if "/c/" in name]
    store.pipe_file(chunk, store.cat_file(chunk)[:-7])
    with pytest.raises(DataError, match=r"memory://bucket/a\.zarr: its chunk .* ends too early"):
        open_array(address).read(np.s_[0:4, 0:6, 0:40, 0:50], np.empty_like(WHOLE))
