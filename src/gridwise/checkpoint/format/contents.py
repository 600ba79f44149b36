"""What is at a path, as a manifest: a checkpoint, or safetensors files written by any program.

Reading the bytes and parsing them are separate, because workers compare the bytes, and may take those of the first.
"""

from __future__ import annotations

from ..store_path import Place, StorePath
from .manifest import MANIFEST, Manifest
from .manifest_parser import from_bytes, read_manifest_bytes
from .safetensors_headers import MAGIC, from_headers, is_safetensors, read_headers


def read_contents_bytes(path: Place) -> bytes:
    """The bytes of the manifest or of the headers at `path`, unchecked."""
    if isinstance(path, StorePath) or not is_safetensors(path):
        return read_manifest_bytes(path)
    return read_headers(path)


def contents_of(data: bytes, path: Place) -> Manifest:
    """The manifest in these bytes, checked."""
    if isinstance(path, StorePath) or not data.startswith(MAGIC):
        return from_bytes(data, path / MANIFEST)
    return from_headers(data, path)


def read_contents(path: Place) -> Manifest:
    """The manifest of what is at `path`, checked."""
    return contents_of(read_contents_bytes(path), path)
