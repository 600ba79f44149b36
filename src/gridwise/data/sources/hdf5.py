"""Datasets of HDF5 files, through h5py. External links, external storage and virtual datasets are refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DataError
from .source import OpenedSource, Slices, reading
from .stores import PIECE, driver_of

if TYPE_CHECKING:
    import h5py

MAGIC = b"\x89HDF\r\n\x1a\n"
LINKS = 16
"""Most soft links on the way to a dataset."""


class HDF5Source(OpenedSource):
    """A dataset of an HDF5 file, at a path or at the address of a store."""

    def __init__(self, path: Path | str, name: str | None) -> None:
        self.path, self.name = path, name
        self.label = f"{path}:{name}" if name else str(path)
        with reading(self.label):
            self._look()

    def _open(self) -> h5py.Dataset:
        import h5py

        if isinstance(self.path, str):  # an address
            store, key = driver_of(self.path)
            file = h5py.File(store.open(key, "rb", block_size=PIECE, cache_type="blockcache"), "r")
        else:
            file = h5py.File(self.path, "r", locking="best-effort")
        return checked(found(file, self.name or only_name(file)), self.label)

    def _read(self, slices: Slices, out: np.ndarray) -> None:
        import h5py

        if not out.flags.c_contiguous:
            super()._read(slices, out)
            return
        there = self.opened.id.get_space()  # as `read_direct` does, with less overhead
        there.select_hyperslab(tuple(rows.start for rows in slices), out.shape)
        self.opened.id.read(h5py.h5s.create_simple(out.shape), there, out, h5py.h5t.py_create(self.dtype))


def found(file: h5py.File, name: str) -> object:
    """The object of that name; soft links inside the file are followed one by one, so that none leads out of it."""
    import h5py

    here, left, followed = file, _parts(name), 0
    while left:
        part = left.pop(0)
        link = here.get(part, getlink=True) if isinstance(here, h5py.Group) else None
        if link is None:
            raise DataError(f"there is no {name!r} in it; it has {', '.join(_names(file)) or 'no datasets'}.")
        if isinstance(link, h5py.ExternalLink):
            raise DataError(f"{name!r} is a link into another file, {link.filename!r}, and is not followed.")
        if isinstance(link, h5py.SoftLink):
            followed += 1
            if followed > LINKS:
                raise DataError(f"{name!r} is a chain of more than {LINKS} links.")
            here = file if link.path.startswith("/") else here
            left = _parts(link.path) + left
        else:
            here = here[part]
    return here


def checked(dataset: object, label: str) -> h5py.Dataset:
    """The h5py dataset; raises unless its numbers are in its own file."""
    import h5py

    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
        raise DataError(f"{label} is no array of HDF5.")
    if dataset.is_virtual or dataset.external:
        raise DataError(
            f"{label} takes its numbers from other files (virtual or external storage), which are not opened."
        )
    return dataset


def only_name(file: h5py.File) -> str:
    """The name of the only dataset at the top of a file."""
    names = _names(file)
    if len(names) != 1:
        raise DataError(
            f"it holds {len(names)} datasets at its top: {', '.join(names)}.",
            fix="say which one: gridwise.data.open_array(path, name).",
        )
    return names[0]


def _names(file: h5py.File) -> list[str]:
    import h5py

    links = {name: file.get(name, getlink=True) for name in file}
    return [n for n, link in links.items() if isinstance(link, h5py.HardLink) and isinstance(file[n], h5py.Dataset)]


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]
