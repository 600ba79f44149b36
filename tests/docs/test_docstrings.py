"""Every example in a docstring runs, and every public name has Parameters and an example."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import gridwise
import gridwise_compat
from gridwise import checkpoint

NEED_A_LAUNCHER = (
    "gridwise.comm.transports.mpi",
    "gridwise.comm.launching.worker",
)
ADAPTED = ("monai", "diffusers", "lightning", "accelerate", "transformers")
NEED_ANOTHER_LIBRARY = tuple(f"gridwise.integrations.{name}" for name in ADAPTED)
"""Their examples run in `make test-integrations`."""
MODULES = [
    name
    for package in (gridwise, gridwise_compat)
    for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if name not in (*NEED_A_LAUNCHER, *NEED_ANOTHER_LIBRARY)
]


def names_in_examples(folder: Path) -> dict[str, Any]:
    """What the examples take for granted: a model, its optimiser, and a checkpoint of both."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimiser = torch.optim.Adam(model.parameters())
    path = folder / "run" / "step-100"
    checkpoint.save(path, {"model": model, "optim": optimiser, "step": 100})
    return {
        "gridwise": gridwise,
        "torch": torch,
        "np": np,
        "checkpoint": checkpoint,
        "model": model,
        "optimiser": optimiser,
        "path": path,
        "folder": folder / "series",
    }


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    few = {"gridwise": gridwise, "torch": torch, "np": np}  # of modules whose classes have the docstrings of others
    names = names_in_examples(tmp_path) if ">>>" in inspect.getsource(module) else few
    assert doctest.testmod(module, extraglobs=names, optionflags=flags).failed == 0


# ---- what is public is documented -----------------------------------------------------------------------------------
LIST = Path(__file__).parents[1] / "documented_names.txt"


def documented_objects() -> dict[str, Any]:
    """The functions and classes behind the documented names, each under the first of its names."""
    found: dict[int, tuple[str, Any]] = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        name = line.partition("#")[0].strip()
        parent, _, leaf = name.rpartition(".")
        thing = (
            getattr(importlib.import_module(parent), leaf, None) if parent else None
        )  # None: a module not loaded yet
        if inspect.isfunction(thing) or inspect.isclass(thing):
            found.setdefault(id(thing), (name, thing))
    return dict(found.values())


def lacks(thing: Any) -> list[str]:
    """What is missing in a docstring: a first line, an example, and Parameters, if its user passes any."""
    doc = thing.__doc__ or ""
    missing = [] if doc.strip() else ["docstring"]
    if "Examples\n" not in doc or ">>> " not in doc:
        missing.append("example")
    is_sectioned = "Parameters\n" in doc or "Attributes\n" in doc
    if takes_arguments(thing) and not is_sectioned:
        missing.append("Parameters")
    return missing


def takes_arguments(thing: Any) -> bool:
    """Whether users call it with arguments of its own; errors are caught, members of an enumeration are named."""
    if inspect.isclass(thing) and (issubclass(thing, Enum) or thing.__init__ in (Exception.__init__, object.__init__)):
        return False
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return "__init__" in vars(thing)
    if inspect.isclass(thing) and thing.__init__ is torch.Tensor.__init__:
        return False
    return bool(inspect.signature(thing).parameters)


def test_every_public_name_has_a_docstring_with_parameters_and_an_example():
    things = documented_objects()
    assert len(things) > 250
    assert {name: missing for name, thing in things.items() if (missing := lacks(thing))} == {}


def test_a_missing_section_is_noticed():
    def bare(x: int) -> int:
        """A first line."""
        return x

    assert lacks(bare) == ["example", "Parameters"]
    assert lacks(lambda: 0) == ["docstring", "example"]


def test_what_stands_at_the_top_is_documented():
    public = {name: thing for name, thing in vars(gridwise).items() if not name.startswith("_")}
    known = (ModuleType, importlib)
    assert [name for name, thing in public.items() if thing not in known and not thing.__doc__] == []
