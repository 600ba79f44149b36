"""Without the library that it adapts, an adapter says what to install."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

import gridwise
from gridwise.errors import PartitionError, UnsupportedError
from gridwise.integrations.exact import exact

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", ["monai", "diffusers", "lightning", "accelerate", "transformers"])
def test_a_missing_library_is_named_with_its_extra(name, monkeypatch):
    for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"gridwise.integrations.{name}", raising=False)
    with pytest.raises(UnsupportedError, match=rf"needs {name}.*\n  fix: pip install 'gridwise\[integrations\]'"):
        importlib.import_module(f"gridwise.integrations.{name}")
    extra = PROJECT["optional-dependencies"]["integrations"]
    assert any(requirement.startswith(f"{name}>=") and "<" in requirement for requirement in extra)


def test_a_partition_and_a_limit_are_one_too_many():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    with pytest.raises(PartitionError, match=r"'memory' asks for tiles.*\n  fix"):
        exact(lambda x: x + 1, "1MiB", P_x, tile=None)
