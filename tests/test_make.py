"""What `make` runs can be imported: benchmarks, tools, zoo and conformance are in no other tests. (The examples are run.)"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECIPES = (ROOT / "Makefile").read_text()
FOLDERS = ("benchmarks", "conformance", "tools", "zoo")
PACKAGES = ("conformance", "zoo")


def test_targets_exist() -> None:
    scripts = re.findall(r"\$\(BIN\)/python (\S+\.py)", RECIPES)
    assert {"benchmarks/run.py", "examples/lenet_mnist.py", "examples/seams.py", "tools/check_links.py"} <= set(scripts)
    assert [script for script in scripts if not (ROOT / script).is_file()] == []
    modules = re.findall(r"\$\(BIN\)/python -m (\w+(?:\.\w+)+)", RECIPES)
    assert modules == ["zoo.run", "conformance.run"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_scripts_can_be_imported(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.syspath_prepend(ROOT)
    if folder not in PACKAGES:
        monkeypatch.syspath_prepend(ROOT / folder)
    monkeypatch.setattr(sys, "argv", [""])
    try:
        for script in sorted((ROOT / folder).glob("*.py")):
            if script.stem != "__init__":
                importlib.import_module(f"{folder}.{script.stem}" if folder in PACKAGES else script.stem)
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:  # they are called `data`, `memory`, ...
            if Path(getattr(sys.modules[name], "__file__", None) or "").parent == ROOT / folder:
                del sys.modules[name]
    assert capsys.readouterr().out == "", "a script runs when it is imported"
