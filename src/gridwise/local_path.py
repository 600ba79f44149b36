"""Paths that users give, which are local. `Path("s3://bucket/run")` would be a folder `s3:` of this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .errors import GridwiseError, PartitionError

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
"""A scheme and what follows; a `Path` has made one slash of two."""


def local_path(given: str | os.PathLike[str], error: type[GridwiseError] = PartitionError) -> Path:
    """The path; an `error` if it is the address of something elsewhere."""
    address = _ADDRESS.match(os.fspath(given))
    if address is None:
        return Path(given)
    scheme, rest = address.groups()
    if scheme.lower() == "file":
        raise error(f"{scheme}://{rest} is an address, and not a path.", fix=f"/{rest}")
    raise error(
        f"{scheme}://{rest} is the address of a store, and only paths of file systems can be read or written.",
        fix="a path that all workers see; a store can be mounted at one.",
    )
