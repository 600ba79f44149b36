"""Files of arrays that other programs wrote, read back through `gridwise.data.open_array` and compared bit for bit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import zarr

from gridwise.data import open_array
from gridwise.errors import GridwiseError
from gridwise.grid import Box

from .findings import Finding
from .on_threads import reason_of
from .results import Result, summarised

SHAPE = (5, 7, 6)
BOXES = (Box((0, 0, 0), SHAPE), Box((1, 2, 0), (4, 7, 5)), Box((4, 6, 5), SHAPE), Box((2, 3, 1), (2, 5, 4)))
NUMBERS = ("u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16", "?", ">i2", ">i4", ">f4", ">f8", "u2", "u4")
VERSIONS = f"h5py {h5py.__version__}, zarr {zarr.__version__}, nibabel {nibabel.__version__}, numpy {np.__version__}"
ABOUT = (
    "Arrays in files that h5py, zarr, nibabel and numpy write: dtypes, byte orders, chunks, compressors, filters, fill values, "
    "memory orders, scaled numbers, OME-Zarr's groups of resolutions (0.4 and 0.5; laid out with zarr). Boxes of each, among "
    "them an empty one, are compared bit for bit with what the program itself reads."
)
Written = tuple[Path, dict[str, Any], np.ndarray]
"""Where it is, how it is opened, and what the program itself reads there."""


def whole(dtype: str) -> np.ndarray:
    """Numbers that differ from one another, as far as the dtype has so many."""
    count = np.arange(np.prod(SHAPE)).reshape(SHAPE) % 113
    return (count % 2 == 0 if dtype == "?" else count - (0 if "u" in dtype else 50)).astype(dtype)


def hdf5(folder: Path, dtype: str, fill: bool = False, **settings: Any) -> Written:
    with h5py.File(folder / "a.h5", "w") as file:
        dataset = file.create_dataset("group/x", shape=SHAPE, dtype=dtype, **settings)
        if fill:
            dataset[1:3] = whole(dtype)[1:3]
        else:
            dataset[...] = whole(dtype)
    with h5py.File(folder / "a.h5") as file:
        return folder / "a.h5", {"name": "group/x"}, file["group/x"][...]


def zarr_array(folder: Path, dtype: str, fill: bool = False, **settings: Any) -> Written:
    array = zarr.create_array(folder / "a.zarr", shape=SHAPE, dtype=dtype, **{"chunks": (2, 7, 4), **settings})
    if fill:
        array[1:3] = whole(dtype)[1:3]
    else:
        array[...] = whole(dtype)
    return folder / "a.zarr", {}, np.asarray(zarr.open_array(folder / "a.zarr", mode="r")[...])


def ome_zarr(folder: Path, dtype: str, version: str = "0.5", level: int = 0) -> Written:
    old = version == "0.4"
    group = zarr.open_group(folder / "a.zarr", mode="w", zarr_format=2 if old else 3)
    for i in range(2):
        data = np.repeat(whole(dtype), 2 - i, axis=2)
        more = {"chunk_key_encoding": {"name": "v2", "separator": "/"}} if old else {}
        group.create_array(str(i), shape=data.shape, chunks=(5, 4, 4), dtype=dtype, **more)[...] = data
    scales = [{"type": "scale", "scale": [1, 1, 1]}]
    datasets = [{"path": str(i), "coordinateTransformations": scales} for i in range(2)]
    axes = [{"name": name, "type": "space"} for name in "zyx"]
    multiscales = [{"version": version, "axes": axes, "datasets": datasets}]
    group.attrs.update(
        {"multiscales": multiscales} if old else {"ome": {"version": version, "multiscales": multiscales}}
    )
    return folder / "a.zarr", {"level": level}, np.asarray(group[str(level)][...])


def nifti(folder: Path, dtype: str, kind: str = "Nifti1Image", name: str = "a.nii", slope: float = 1.0) -> Written:
    header = getattr(nibabel, kind.replace("Image", "Header"))(endianness=">" if dtype.startswith(">") else "<")
    header.set_data_dtype(dtype)
    image = getattr(nibabel, kind)(whole(dtype), np.eye(4), header)
    if slope != 1:
        image.header.set_slope_inter(slope, 3.0)
    nibabel.save(image, folder / name)
    return folder / name, {}, np.asarray(nibabel.load(folder / name).dataobj)


def npy(folder: Path, dtype: str, order: str = "C", version: tuple[int, int] = (1, 0)) -> Written:
    with (folder / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, np.asarray(whole(dtype), order=order), version)  # type: ignore[call-overload]
    return folder / "a.npy", {}, np.load(folder / "a.npy")


CHUNKED: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (2, 3, 6)},
    "gzip": {"chunks": (2, 3, 6), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (2, 3, 6), "compression": "lzf"},
    "checksums": {"chunks": (5, 7, 1), "fletcher32": True},
    "growing": {"chunks": (2, 3, 6), "maxshape": (None, 7, 6)},
}
ZARR: dict[str, dict[str, Any]] = {
    "3": {"zarr_format": 3},
    "3, gzip": {"zarr_format": 3, "compressors": zarr.codecs.GzipCodec()},
    "3, blosc": {"zarr_format": 3, "compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle")},
    "3, big endian": {"zarr_format": 3, "serializer": zarr.codecs.BytesCodec(endian="big")},
    "3, shards": {"zarr_format": 3, "chunks": (1, 7, 2), "shards": (2, 7, 4)},
    "3, transposed": {"zarr_format": 3, "filters": [zarr.codecs.TransposeCodec(order=(2, 0, 1))]},
    "3, one chunk": {"zarr_format": 3, "chunks": SHAPE, "compressors": None},
    "2": {"zarr_format": 2},
    "2, order F": {"zarr_format": 2, "order": "F"},
    "2, plain": {"zarr_format": 2, "compressors": None},
    "2, nested": {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
}


def cases() -> Iterator[tuple[str, str, Callable[[Path], Written]]]:
    """Program, name, and what writes the file."""
    for dtype in NUMBERS:
        for name, settings in CHUNKED.items():
            if not (dtype == "?" and "fletcher32" in settings):
                yield "h5py", f"{name}, {dtype}", lambda f, d=dtype, s=settings: hdf5(f, d, **s)
        for name, settings in ZARR.items():
            if not (">" in dtype and (name == "3, big endian" or name.startswith("3"))):
                yield "zarr", f"{name}, {dtype}", lambda f, d=dtype, s=settings: zarr_array(f, d, **s)
        for version in ("0.4", "0.5"):
            if not (">" in dtype and version == "0.5"):
                for level in (0, 1):
                    name = f"{version}, level {level}, {dtype}"
                    yield "OME-Zarr", name, lambda f, d=dtype, v=version, n=level: ome_zarr(f, d, v, n)
        for order in "CF":
            for version in ((1, 0), (2, 0), (3, 0)):
                name = f"order {order}, version {version[0]}, {dtype}"
                yield "numpy", name, lambda f, d=dtype, o=order, v=version: npy(f, d, o, v)
        if dtype not in ("f2", "?"):
            for kind in ("Nifti1Image", "Nifti2Image"):
                for name in ("a.nii", "a.nii.gz"):
                    yield "nibabel", f"{kind}, {name}, {dtype}", lambda f, d=dtype, k=kind, n=name: nifti(f, d, k, n)
    for dtype in ("i2", "u1", ">i2"):
        yield "nibabel", f"scaled, {dtype}", lambda f, d=dtype: nifti(f, d, slope=0.5)
        yield (
            "h5py",
            f"never written in part, {dtype}",
            lambda f, d=dtype: hdf5(f, d, True, chunks=(2, 7, 6), fillvalue=9),
        )
    for dtype in ("i2", "f4"):
        for form in (2, 3):
            name = f"{form}, never written in part, {dtype}"
            yield "zarr", name, lambda f, d=dtype, v=form: zarr_array(f, d, True, zarr_format=v, fill_value=9)


def finding_of(program: str, name: str, write: Callable[[Path], Written]) -> Finding:
    """What came of one file."""
    case = f"{program}: {name}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            path, settings, expected = write(Path(folder))
        except Exception as error:
            return Finding(case, program, "inapplicable", text=f"{type(error).__name__}: {error}")
        try:
            source = open_array(path, **settings)
            for box in BOXES:
                out = np.empty(box.shape, source.dtype)
                source.read(box.slices, out)
                part = expected[box.slices]
                if source.shape != expected.shape or out.dtype != part.dtype.newbyteorder("="):
                    return Finding(
                        case, program, "wrong", text=f"{source.shape} of {source.dtype}, not {expected.dtype}"
                    )
                if out.tobytes() != part.astype(out.dtype).tobytes():
                    return Finding(case, program, "wrong", text="other numbers")
        except GridwiseError as error:
            return Finding(case, program, "refused", text=reason_of(error).replace(folder, ""))
        except Exception as error:
            return Finding(case, program, "wrong", text=f"{type(error).__name__}: {error}".replace(folder, ""))
    return Finding(case, program, "equal")


def run(fraction: float, seed: int, kept: Path) -> Result:
    """The suite, for conformance.run; always all of it."""
    result = Result("formats", "Arrays in files of other programs", VERSIONS, ABOUT, unit="programs")
    return summarised(result, [finding_of(*case) for case in cases()])
