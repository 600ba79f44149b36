"""Zarr arrays and OME-Zarr images in folders and in stores, through zarr.

A worker reads the chunks that overlap its block, and no others.

A chunk that does not exist holds the array's fill value, as Zarr defines it. Most codecs notice a chunk that ends too
early. Blosc reads on behind its end, so it is compared with the length in its header first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DataError
from .source import OpenedSource, reading
from .stores import driver_of

if TYPE_CHECKING:
    import zarr

BLOSC_HEADER = 16
"""Bytes before the data; the last four are the length of both together."""
METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


class ZarrSource(OpenedSource):
    """An array of a Zarr store in a folder, or at an address."""

    def __init__(self, path: Path | str, name: str | None, level: int = 0) -> None:
        self.path, self.name, self.level = path, name, level
        self.label = f"{path}/{name}" if name else str(path)
        with reading(self.label):
            self._look()

    def _open(self) -> zarr.Array:
        import zarr

        store = _store_for(self.path)
        found = zarr.open(store, mode="r", path=_inside(self.name))
        if isinstance(found, zarr.Group):
            name = _inside(_image(found, self.level))
            found, group = found[name], found
            if not isinstance(found, zarr.Array):
                raise DataError(f"{found.name} in {group} is no array.")
        store.has_blosc = _ends_in_blosc(found)
        return checked(found, self.label)


def _store_for(path: Path | str) -> Any:
    """The store in a folder or at an address, which raises for a chunk of Blosc that ends too early."""
    import zarr

    kind: Any = zarr.storage.FsspecStore if isinstance(path, str) else zarr.storage.LocalStore

    class CheckedStore(kind):
        has_blosc = False

        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
            found = await super().get(key, prototype, byte_range)
            if found is not None and byte_range is None and self.has_blosc and not key.endswith(METADATA):
                head = found[:BLOSC_HEADER].to_bytes()
                expected = int.from_bytes(head[-4:], "little") if len(head) == BLOSC_HEADER else BLOSC_HEADER
                if len(found) < expected:
                    raise DataError(f"its chunk {key} ends too early: {len(found)} of {expected} bytes are there.")
            return found

    if isinstance(path, str):
        driver_of(path)  # raises for an address that cannot be used
        return CheckedStore.from_url(path, read_only=True)
    return CheckedStore(path, read_only=True)


def _ends_in_blosc(array: zarr.Array) -> bool:
    """Whether what lies in a chunk's file is what Blosc has written."""
    metadata: Any = array.metadata
    last = metadata.compressor if metadata.zarr_format == 2 else metadata.codecs[-1]
    return type(last).__name__ in ("Blosc", "BloscCodec")


def checked(array: zarr.Array, label: str) -> zarr.Array:
    """The zarr array; raises if any part of it is read by unpickling."""
    metadata = array.metadata.to_dict()
    codecs = str([metadata.get(key) for key in ("codecs", "filters", "compressor")]).lower()
    if "pickle" in codecs or np.dtype(array.dtype).hasobject:
        raise DataError(f"{label} holds Python objects, which are never read.")
    return array


def _image(group: zarr.Group, level: int) -> str:
    """The name of an image's array at a resolution level, 0 the finest, from the metadata of OME-Zarr 0.4 or 0.5."""
    attributes: dict[str, Any] = dict(group.attrs)
    scales = attributes.get("ome", attributes).get("multiscales")
    if not scales:
        raise DataError(
            f"it is a group of {', '.join(sorted(group)) or 'nothing'}, and no image of OME-Zarr.",
            fix="say which array: gridwise.data.open_array(path, name).",
        )
    levels = scales[0]["datasets"]
    if not 0 <= level < len(levels):
        raise DataError(f"`level` (={level}) must be one of the image's {len(levels)}.")
    return str(levels[level]["path"])


def _inside(name: str | None) -> str:
    """The name, normalised; raises if it leads out of the store."""
    parts = (name or "").strip("/").split("/")
    if ".." in parts or "\\" in (name or ""):
        raise DataError(f"{name!r} leads out of the store.")
    return "/".join(part for part in parts if part not in ("", "."))
