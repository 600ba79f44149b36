"""Checkpoints whose manifests were changed, with a checksum that fits again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_manifest_parser import sealed, tree_of


def forge(path: Path, **changes: dict[str, Any]) -> None:
    tree = tree_of(path)
    for name, entries in changes.items():
        tree[name] |= entries
    (path / "manifest.json").write_bytes(sealed(tree))
