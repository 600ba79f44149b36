"""Arrays of Zarr, and images of OME-Zarr, through zarr. A worker reads the chunks that meet its block, and no others.

A chunk that is not there holds the array's fill value: so Zarr means it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError, describe
from .source import Place, Source, copy_checked, native, reading


class ZarrSource(Source):
    """An array of a local Zarr store, which is opened in each process that reads."""

    def __init__(self, path: Path, name: str | None, level: int = 0) -> None:
        self.path, self.name, self.level = path, name, level
        self.says = f"{path}/{name}" if name else str(path)
        self._array: Any = None
        with reading(self.says):
            array = self._opened()
            self.shape, self.dtype = tuple(array.shape), native(array.dtype, self.says)

    def _opened(self) -> Any:
        if self._array is None:
            import zarr

            store: Any = zarr.open(
                zarr.storage.LocalStore(self.path, read_only=True), mode="r", path=_inside(self.name)
            )
            if not isinstance(store, zarr.Array):
                store = _inner(store, store[_inside(_image(store, self.level))])
            self._array = checked(store, self.says)
        return self._array

    def _read(self, place: Place, out: np.ndarray) -> None:
        copy_checked(np.asarray(self._opened()[place]), out)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}


def checked(array: Any, says: str) -> Any:
    """An array of zarr, if no part of it is made by unpickling."""
    metadata = array.metadata.to_dict()
    codecs = str([metadata.get(key) for key in ("codecs", "filters", "compressor")]).lower()
    if "pickle" in codecs or np.dtype(array.dtype).hasobject:
        raise DataError(f"{says} holds Python objects, which are never read.")
    return array


def _image(group: Any, level: int) -> str:
    """The name of an image's array at a level of resolution, 0 the finest, by the metadata of OME-Zarr 0.4 or 0.5."""
    attributes = dict(group.attrs)
    scales = attributes.get("ome", attributes).get("multiscales")
    if not scales:
        raise DataError(
            describe(
                f"it is a group of {', '.join(sorted(group)) or 'nothing'}, and no image of OME-Zarr.",
                fix="say which array: gridwise.data.open_array(path, name).",
            )
        )
    levels = scales[0]["datasets"]
    if not 0 <= level < len(levels):
        raise DataError(f"`level` (={level}) must be one of the image's {len(levels)}.")
    return str(levels[level]["path"])


def _inner(group: Any, found: Any) -> Any:
    import zarr

    if not isinstance(found, zarr.Array):
        raise DataError(f"{found.name} in {group} is no array.")
    return found


def _inside(name: str | None) -> str:
    """A name that cannot leave the store."""
    parts = (name or "").strip("/").split("/")
    if ".." in parts or "\\" in (name or ""):
        raise DataError(f"{name!r} leads out of the store.")
    return "/".join(part for part in parts if part not in ("", "."))
