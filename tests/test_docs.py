"""Every example in a docstring runs, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import gridwise
from gridwise import checkpoint
from gridwise.testing import workers

NEED_A_LAUNCHER = (
    "gridwise.comm.transports.mpi",
    "gridwise.comm.launching.worker",
)
MODULES = [name for _, name, _ in pkgutil.walk_packages(gridwise.__path__, "gridwise.") if name not in NEED_A_LAUNCHER]


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
        "checkpoint": checkpoint,
        "model": model,
        "optimiser": optimiser,
        "path": path,
        "folder": folder / "series",
    }


PAGE = Path(__file__).parents[1] / "docs" / "interchange.md"
CODE = re.compile(r"^```python\n(.*?)^```$|^<!-- setup\n(.*?)^-->$", re.DOTALL | re.MULTILINE)


@workers(4, transports=("gloo",))
def test_code_on_the_page_of_interchange_runs(tmp_path):
    os.chdir(tmp_path)
    program = "\n".join(shown or hidden for shown, hidden in CODE.findall(PAGE.read_text()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled|TypedStorage is deprecated")
        exec(compile(program, str(PAGE), "exec"), {"__name__": "page"})


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    names = names_in_examples(tmp_path) if ">>>" in inspect.getsource(module) else {}
    assert doctest.testmod(module, extraglobs=names, optionflags=flags).failed == 0


@pytest.mark.parametrize("name", [name for name in vars(gridwise) if not name.startswith("_")])
def test_public_names_are_documented(name):
    thing = getattr(gridwise, name)
    if thing is ModuleType or thing is importlib:
        return
    assert thing.__doc__, f"gridwise.{name} has no docstring"
    if inspect.isfunction(thing) or inspect.isclass(thing):
        assert ">>>" in thing.__doc__ or thing is gridwise.CartesianPartition, f"gridwise.{name} has no example"
