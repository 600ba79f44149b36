"""What stands at a path, as a manifest: a checkpoint, or safetensors files of any program.

The bytes that tell it are read first, because workers compare them, and may hand theirs on.
"""

from __future__ import annotations

from pathlib import Path

from .manifest import MANIFEST, Manifest
from .manifest_parser import from_bytes, read_manifest_bytes
from .safetensors_headers import MAGIC, from_headers, is_safetensors, read_headers


def read_contents_bytes(path: Path) -> bytes:
    """The bytes that say what is at `path`, unchecked."""
    return read_headers(path) if is_safetensors(path) else read_manifest_bytes(path)


def contents_of(data: bytes, path: Path) -> Manifest:
    """What these bytes say, checked."""
    return from_headers(data, path) if data.startswith(MAGIC) else from_bytes(data, path / MANIFEST)


def read_contents(path: Path) -> Manifest:
    """What is at `path`, checked."""
    return contents_of(read_contents_bytes(path), path)
