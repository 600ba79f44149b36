"""The programs that `make` and readers start (benchmarks, examples, the zoo, tools): what they import exists."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path for folder in ("benchmarks", "examples", "tools", "zoo") for path in (ROOT / folder).glob("*.py"))
OURS = ("gridwise", "tests", "zoo")
"""Packages whose names are looked up; others may be optional."""


def imported(path: Path) -> Iterator[tuple[str, str | None]]:
    """The modules of ours that a script imports, each with a name that it takes from it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] in OURS)
        elif isinstance(node, ast.ImportFrom):
            within = [path.parent.name] if node.level else []
            module = ".".join([*within, *([node.module] if node.module else [])])
            if module.split(".")[0] in OURS:
                yield from ((module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_a_script_imports_exists(path: Path) -> None:
    for module, name in imported(path):
        found = importlib.import_module(module)
        if name is not None and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
