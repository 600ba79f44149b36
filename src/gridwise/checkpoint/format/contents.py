"""What is at a path, as a manifest: a checkpoint, or safetensors files written by any program.

Reading the bytes and parsing them are separate, because workers compare the bytes, and may take those of the first.
"""

from __future__ import annotations

from pathlib import Path

from .manifest import MANIFEST, Manifest
from .manifest_parser import from_bytes, read_manifest_bytes
from .safetensors_headers import MAGIC, from_headers, is_safetensors, read_headers


def read_contents_bytes(path: Path) -> bytes:
    """The bytes of the manifest or of the headers at `path`, unchecked."""
    return read_headers(path) if is_safetensors(path) else read_manifest_bytes(path)


def contents_of(data: bytes, path: Path) -> Manifest:
    """The manifest in these bytes, checked."""
    return from_headers(data, path) if data.startswith(MAGIC) else from_bytes(data, path / MANIFEST)


def read_contents(path: Path) -> Manifest:
    """The manifest of what is at `path`, checked."""
    return contents_of(read_contents_bytes(path), path)
