"""Datasets of HDF5 files, through h5py. What leads to other files is refused: external links, storage and virtual datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError, describe
from .source import Place, Source, copy_checked, native, reading

MAGIC = b"\x89HDF\r\n\x1a\n"
LINKS = 16
"""How many soft links may follow one another."""


class HDF5Source(Source):
    """A dataset of an HDF5 file, which is opened in each process that reads."""

    def __init__(self, path: Path, name: str | None) -> None:
        self.path, self.name = path, name
        self.says = f"{path}:{name}" if name else str(path)
        self._dataset: Any = None
        self._type: Any = None
        """The dtype, as HDF5 has it."""
        with reading(self.says):
            dataset = self._opened()
            self.shape, self.dtype = tuple(dataset.shape), native(dataset.dtype, self.says)

    def _opened(self) -> Any:
        if self._dataset is None:
            import h5py

            file = h5py.File(self.path, "r", locking="best-effort")
            self._dataset = checked(found(file, self.name or only_name(file)), self.says)
        return self._dataset

    def _read(self, place: Place, out: np.ndarray) -> None:
        import h5py

        dataset = self._opened()
        if not out.flags.c_contiguous:
            copy_checked(dataset[place], out)
            return
        self._type = self._type or h5py.h5t.py_create(self.dtype)
        there = dataset.id.get_space()  # as `read_direct` does, with less around it
        there.select_hyperslab(tuple(rows.start for rows in place), out.shape)
        dataset.id.read(h5py.h5s.create_simple(out.shape), there, out, self._type)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dataset": None, "_type": None}


def found(file: Any, name: str) -> Any:
    """The object of that name; soft links inside of the file are followed, one by one, so that none leads out of it."""
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


def checked(dataset: Any, says: str) -> Any:
    """A dataset of h5py, if its numbers lie in its own file."""
    import h5py

    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
        raise DataError(f"{says} is no array of HDF5.")
    if dataset.is_virtual or dataset.external:
        raise DataError(
            f"{says} takes its numbers from other files (virtual or external storage), which are not opened."
        )
    return dataset


def only_name(file: Any) -> str:
    """The name of the only dataset at the top of a file."""
    names = _names(file)
    if len(names) != 1:
        raise DataError(
            describe(
                f"it holds {len(names)} datasets at its top: {', '.join(names)}.",
                fix="say which one: gridwise.data.open_array(path, name).",
            )
        )
    return names[0]


def _names(file: Any) -> list[str]:
    import h5py

    links = {name: file.get(name, getlink=True) for name in file}
    return [n for n, link in links.items() if isinstance(link, h5py.HardLink) and isinstance(file[n], h5py.Dataset)]


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]
