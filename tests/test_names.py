"""Documented names stay: each can be imported, and without a warning unless the list says that it warns."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

LIST = Path(__file__).parent / "documented_names.txt"
LINES = [line.split("#") for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
NAMES = {name.strip(): "warns" in "".join(comment) for name, *comment in LINES}
PACKAGES = [
    "gridwise",
    "gridwise.nn",
    "gridwise.nn.mixins",
    "gridwise.nn.utils",
    "gridwise.checkpoint",
    "gridwise.data",
    "gridwise.deferred_init",
    "gridwise.fake",
    "gridwise.optim",
    "gridwise.planning",
    "gridwise.show",
    "gridwise.tagi",
    "gridwise.tagi.nn",
    "gridwise.testing",
]
NOT_PROMISED = {"gridwise.importlib", "gridwise.ModuleType"}

IMPORT_EACH = """
import json, sys, warnings

problems, warned = {}, []
for name in json.load(sys.stdin):
    parent, _, leaf = name.rpartition(".")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(f"from {parent} import {leaf}" if parent else f"import {leaf}", {})
        except Exception as error:
            problems[name] = repr(error)
    if caught:
        warned.append(name)
json.dump([problems, warned], sys.stdout)
"""

REACH_EACH = """
import json, sys
import gridwise

problems = {}
for name in json.load(sys.stdin):
    try:
        eval(name)
    except Exception as error:
        problems[name] = repr(error)
json.dump(problems, sys.stdout)
"""


def in_a_fresh_process(program: str, names: list[str]) -> list | dict:
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(names), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_documented_names_can_be_imported():
    problems, warned = in_a_fresh_process(IMPORT_EACH, list(NAMES))
    assert not problems
    assert warned == [name for name, warns in NAMES.items() if warns]


def test_documented_names_are_attributes_too():
    """After `import gridwise`, as DistDL's and pytagi's users write them. Pictures are imported by those who draw."""
    others = ("gridwise.tagi.plots", "gridwise.comm", "gridwise.show.", "gridwise_compat")
    names = [name for name in NAMES if not name.startswith(others)]
    assert not in_a_fresh_process(REACH_EACH, names)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_of_a_package_is_listed(package):
    contents = vars(importlib.import_module(package)).items()
    public = {
        f"{package}.{name}"
        for name, thing in contents
        if not name.startswith("_") and not isinstance(thing, ModuleType)
    }
    assert public - NOT_PROMISED - {f"{package}.annotations"} <= NAMES.keys()
