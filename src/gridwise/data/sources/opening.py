"""A source for what a user passes: a path, opened by the kind of file there, or an array, used as it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from .hdf5 import MAGIC, HDF5Source
from .hdf5 import checked as checked_hdf5
from .nifti import NiftiSource
from .npy import of_memmap, open_npy
from .source import ArraySource, Source, reading
from .stores import StoredNpySource, address_of, driver_of, local_part
from .zarr_array import ZarrSource
from .zarr_array import checked as checked_zarr


def open_array(path: str | os.PathLike[str], name: str | None = None, level: int = 0) -> Source:
    """An array in a file, a folder or a store, of which blocks can be read.

    Parameters
    ----------
    path : a .npy file; an HDF5 file; a .nii or .nii.gz file; the folder of a Zarr array, group or OME-Zarr image. All but
        NIfTI also in a store, by an address: s3://bucket/volume.zarr
    name : which dataset of the HDF5 file, or which array of the Zarr group. Not needed where there is only one, or for images
    level : which resolution of an OME-Zarr image; 0 is the finest

    Examples
    --------
    >>> import numpy
    >>> numpy.save("volume.npy", numpy.zeros((4, 8, 8), dtype=numpy.float32))
    >>> gridwise.data.open_array("volume.npy").shape
    (4, 8, 8)
    """
    address = address_of(path)
    if address is not None:
        return _open_stored(address, name, level)
    place = Path(local_part(path))
    if place.is_dir():
        return ZarrSource(place, name, level)
    with reading(str(place)), place.open("rb") as file:
        start = file.read(len(MAGIC))
    if start == MAGIC:
        return HDF5Source(place, name)
    if name is not None:
        raise DataError(f"{place} is one array: `name` (={name!r}) means nothing in it.")
    if start.startswith(np.lib.format.MAGIC_PREFIX):
        return open_npy(place)
    if place.name.endswith((".nii", ".nii.gz")):
        return NiftiSource(place)
    raise DataError(
        f"{place} is no file that can be read block by block.",
        fix=".npy, HDF5, NIfTI (.nii, .nii.gz) or a folder of Zarr; or open it, and give the array.",
    )


def _open_stored(address: str, name: str | None, level: int) -> Source:
    with reading(address):
        store, key = driver_of(address)
        is_folder = store.isdir(key)
        start = b"" if is_folder else bytes(store.cat_file(key, start=0, end=len(MAGIC)))
    if is_folder:
        return ZarrSource(address, name, level)
    if start == MAGIC:
        return HDF5Source(address, name)
    if name is not None:
        raise DataError(f"{address} is one array: `name` (={name!r}) means nothing in it.")
    if start.startswith(np.lib.format.MAGIC_PREFIX):
        return StoredNpySource(address)
    raise DataError(
        f"{address} is no object that can be read block by block.",
        fix=".npy, HDF5 or a folder of Zarr; or open it, and give the array.",
    )


def as_source(given: Any) -> Source:
    """A path or an array as a source."""
    if isinstance(given, Source):
        return given
    if isinstance(given, str | os.PathLike):
        return open_array(given)
    if isinstance(given, np.memmap) and (mapped := of_memmap(given)) is not None:
        return mapped
    library = type(given).__module__.partition(".")[0]
    label = f"an array of type {type(given).__name__}"
    if library == "h5py":
        checked_hdf5(given, label)
    if library == "zarr" and hasattr(given, "metadata"):
        checked_zarr(given, label)
    return ArraySource(given)
