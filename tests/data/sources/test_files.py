"""Every format gives the numbers that were stored, and refuses what is damaged or leads elsewhere."""

from __future__ import annotations

import json
import pickle

import h5py
import nibabel
import numcodecs
import numpy as np
import pytest
import zarr
from slicing import numbers, partition

from gridwise.data import BlockDataset, open_array
from gridwise.data.sources import as_source
from gridwise.errors import DataError
from gridwise.grid import Box

WHOLE = numbers(4, 6, 5, dtype="f4")


def npy(path):
    np.save(path / "a.npy", WHOLE)
    return path / "a.npy"


def fortran(path):
    np.save(path / "a.npy", np.asfortranarray(WHOLE))
    return path / "a.npy"


def other_byte_order(path):
    np.save(path / "a.npy", WHOLE.astype(">f4"))
    return path / "a.npy"


def version_3(path):
    with (path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, WHOLE, version=(3, 0))
    return path / "a.npy"


def hdf5(path):
    with h5py.File(path / "a.h5", "w") as file:
        file.create_dataset("x", data=WHOLE, chunks=(1, 4, 4), compression="gzip")
    return path / "a.h5"


def hdf5_other_byte_order(path):
    with h5py.File(path / "a.h5", "w") as file:
        file["x"] = WHOLE.astype(">f4")
    return path / "a.h5"


def zarr_3(path):
    zarr.create_array(path / "a.zarr", shape=WHOLE.shape, chunks=(1, 4, 4), dtype="f4")[:] = WHOLE
    return path / "a.zarr"


def zarr_2(path):
    zarr.create_array(path / "a.zarr", shape=WHOLE.shape, chunks=(1, 4, 4), dtype="f4", zarr_format=2)[:] = WHOLE
    return path / "a.zarr"


def ome_zarr(path):
    group = zarr.open_group(path / "a.zarr", mode="w")
    group.create_array("scale0", shape=WHOLE.shape, chunks=WHOLE.shape, dtype="f4")[:] = WHOLE
    group.create_array("scale1", shape=(4, 3, 5), chunks=(4, 3, 5), dtype="f4")[:] = WHOLE[:, ::2]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"datasets": [{"path": "scale0"}, {"path": "scale1"}]}]}
    return path / "a.zarr"


def nifti(path):
    nibabel.save(nibabel.Nifti1Image(WHOLE, np.eye(4)), path / "a.nii")
    return path / "a.nii"


def nifti_gz(path):
    nibabel.save(nibabel.Nifti1Image(WHOLE, np.eye(4)), path / "a.nii.gz")
    return path / "a.nii.gz"


FORMATS = [npy, fortran, other_byte_order, version_3]
FORMATS += [hdf5, hdf5_other_byte_order, zarr_3, zarr_2, ome_zarr, nifti, nifti_gz]
BOX = Box((1, 2, 0), (3, 6, 4))


def read(source, box=BOX):
    out = np.full(box.shape, -1, source.dtype)
    source.read(box.slices, out)
    return out


@pytest.mark.parametrize("write", FORMATS)
def test_a_box_of_a_file(write, tmp_path):
    source = open_array(write(tmp_path))
    assert (source.shape, source.dtype) == (WHOLE.shape, np.dtype("f4"))
    assert np.array_equal(read(source), WHOLE[BOX.slices])
    there = pickle.loads(pickle.dumps(source))  # as it is sent to a process that reads ahead
    assert np.array_equal(read(there), WHOLE[BOX.slices])
    assert read(source, Box((1, 2, 0), (1, 6, 4))).size == 0


def test_levels_of_an_image(tmp_path):
    assert np.array_equal(read(open_array(ome_zarr(tmp_path), level=1), Box((0, 0, 0), (4, 3, 5))), WHOLE[:, ::2])
    with pytest.raises(DataError, match="level"):
        open_array(tmp_path / "a.zarr", level=2)


def test_numbers_of_nifti_are_scaled(tmp_path):
    image = nibabel.Nifti1Image(numbers(3, 3, dtype="i2"), np.eye(4))
    image.header.set_slope_inter(2.0, 1.0)
    nibabel.save(image, tmp_path / "a.nii")
    expected = np.asarray(nibabel.load(tmp_path / "a.nii").dataobj)
    source = open_array(tmp_path / "a.nii")
    assert source.dtype == expected.dtype
    assert np.array_equal(read(source, Box((0, 1), (3, 2))), expected[:, 1:2])


def test_memory_maps_are_read_from_their_file(tmp_path):
    mapped = np.load(npy(tmp_path), mmap_mode="r")
    assert np.array_equal(read(as_source(mapped)), WHOLE[BOX.slices])
    assert np.array_equal(read(as_source(mapped[1:]), Box((0, 2, 0), (2, 6, 4))), WHOLE[BOX.slices])


@pytest.mark.parametrize("write", [npy, hdf5, zarr_3, nifti, nifti_gz])
def test_a_file_that_ends_too_early_is_named(write, tmp_path):
    path = write(tmp_path)
    files = [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file() and f.name != "zarr.json"]
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    with pytest.raises(DataError, match=path.name):
        read(open_array(path), Box.of_shape(WHOLE.shape))


def test_a_file_that_is_cut_off_while_it_is_open(tmp_path):
    source = open_array(npy(tmp_path))
    read(source)
    source.path.write_bytes(source.path.read_bytes()[:200])
    with pytest.raises(DataError, match="ends too early: it has 200 bytes"):
        read(source)


def test_python_objects_are_never_read(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(DataError, match="numbers of torch"):
        open_array(tmp_path / "a.npy")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=["text"], dtype=h5py.string_dtype())
    with pytest.raises(DataError, match="numbers of torch"):
        open_array(tmp_path / "a.h5")
    meta = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "<f4", "fill_value": 0, "order": "C"}
    (tmp_path / "a.zarr").mkdir()
    meta |= {"compressor": None, "filters": [{"id": "pickle", "protocol": 5}]}
    (tmp_path / "a.zarr" / ".zarray").write_text(json.dumps(meta))
    with pytest.raises(DataError, match=r"a\.zarr"):
        open_array(tmp_path / "a.zarr")


def test_hdf5_does_not_lead_to_other_files(tmp_path):
    hdf5(tmp_path)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["group/own"] = WHOLE
        file["soft"] = h5py.SoftLink("/group/own")
        file["outside"] = h5py.ExternalLink("a.h5", "/x")
        file["group/chain"] = h5py.SoftLink("/outside")
        file["loop"] = h5py.SoftLink("/loop")
        file.create_dataset("elsewhere", (4,), "f4", external=[("raw", 0, h5py.h5f.UNLIMITED)])
        layout = h5py.VirtualLayout((4, 6, 5), "f4")
        layout[:] = h5py.VirtualSource("a.h5", "x", (4, 6, 5))
        file.create_virtual_dataset("virtual", layout)
    assert np.array_equal(read(open_array(tmp_path / "b.h5", "soft")), WHOLE[BOX.slices])
    for name, words in {
        "outside": "another file",
        "group/chain": "another file",
        "loop": "chain",
        "elsewhere": "other files",
        "virtual": "other files",
        "none": "there is no 'none'",
        "group": "no array",
    }.items():
        with pytest.raises(DataError, match=words):
            open_array(tmp_path / "b.h5", name)
    with pytest.raises(DataError, match="say which one"):
        open_array(tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5") as file, pytest.raises(DataError, match="other files"):
        as_source(file["virtual"])


def test_zarr_does_not_lead_out_of_its_folder(tmp_path):
    zarr_3(tmp_path)
    group = zarr.open_group(tmp_path / "b.zarr", mode="w")
    group.attrs["multiscales"] = [{"datasets": [{"path": "../a.zarr"}]}]
    for name in (None, "../a.zarr"):
        with pytest.raises(DataError, match="leads out"):
            open_array(tmp_path / "b.zarr", name)


def test_what_is_no_array_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    for path, words in {
        "a.txt": "no file that can be read",
        "none.npy": "none.npy",
        "nowhere://a/b": "no driver for nowhere://",
        "simplecache::s3://a/b": "chained",
        "file://a/b": "absolute path",
    }.items():
        with pytest.raises(DataError, match=words):
            open_array(path if "://" in path else tmp_path / path)
    with pytest.raises(DataError, match="`name`"):
        open_array(npy(tmp_path), "x")


class Lazy:
    """An array as dask and xarray have them: computed when NumPy asks for it."""

    def __init__(self, values, shape=None, dims=(), meta=None):
        self.values, self.dims, self._meta = values, dims, meta
        self.shape, self.dtype = shape or values.shape, values.dtype

    def __getitem__(self, place):
        return Lazy(self.values[place])

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values)


def test_lazy_arrays_with_names_and_without_a_shape():
    array, P = Lazy(numbers(3, 4, 2), dims=("row", "time", "x")), partition(1, 1, 1)
    found = BlockDataset(array, P, sample_dim="time").read([3, 1])
    assert np.array_equal(found, np.moveaxis(array.values, 1, 0)[[3, 1]])
    for wrong in (array, array.values):
        with pytest.raises(DataError, match=r"`sample_dim` \(='t'\) is none of the dims"):
            BlockDataset(wrong, P, sample_dim="t")
    with pytest.raises(DataError, match="is not known"):
        BlockDataset(Lazy(array.values, (float("nan"), 4, 2)), P)


def test_masks_are_not_dropped():
    """What is behind a mask is no number to learn from."""
    masked, P = np.ma.masked_array(numbers(3, 4), numbers(3, 4) > 5), partition(1, 1)
    outer = Lazy(masked)
    outer.data = Lazy(masked, meta=masked[:0])
    for array in (masked, Lazy(masked, meta=masked[:0]), outer):
        with pytest.raises(DataError, match=r"(?s)has a mask.*filled"):
            BlockDataset(array, P)
    assert BlockDataset(masked.filled(0), P).read([0]).shape == (1, 4)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_chunk_of_blosc_that_ends_too_early_is_named(zarr_format, codec, tmp_path):
    """Blosc itself reads on behind the end, and some of its codecs give numbers from there."""
    blosc = (
        numcodecs.Blosc(codec, shuffle=0)
        if zarr_format == 2
        else zarr.codecs.BloscCodec(cname=codec, shuffle="noshuffle")
    )
    whole = np.random.default_rng(0).random((8, 64), dtype="f4")
    zarr.create_array(
        tmp_path / "a.zarr", shape=whole.shape, chunks=(4, 64), dtype="f4", zarr_format=zarr_format, compressors=blosc
    )[:] = whole
    chunks = sorted(path for path in (tmp_path / "a.zarr").rglob("*") if path.is_file() and path.name[0] not in ".z")
    content = chunks[-1].read_bytes()
    source, out = open_array(tmp_path / "a.zarr"), np.empty((8, 64), "f4")
    source.read((slice(0, 8), slice(0, 64)), out)
    assert np.array_equal(out, whole)
    for length in (0, 15, 16, len(content) // 2, len(content) - 1):
        chunks[-1].write_bytes(content[:length])
        open_array(tmp_path / "a.zarr").read((slice(0, 4), slice(0, 64)), np.empty((4, 64), "f4"))
        with pytest.raises(DataError, match=rf"(?s)a\.zarr.*ends too early: {length} of"):
            open_array(tmp_path / "a.zarr").read((slice(4, 8), slice(0, 64)), np.empty((4, 64), "f4"))
