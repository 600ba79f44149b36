"""Every example in a docstring runs, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

import gridwise

SKIPPED = ("gridwise.comm.mpi", "gridwise.comm.worker")  # need a launcher to be imported
MODULES = [name for _, name, _ in pkgutil.walk_packages(gridwise.__path__, "gridwise.") if not name.startswith(SKIPPED)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(module, extraglobs={"gridwise": gridwise, "torch": torch}, optionflags=flags)
    assert result.failed == 0


@pytest.mark.parametrize("name", [name for name in vars(gridwise) if not name.startswith("_")])
def test_public_names_are_documented(name):
    thing = getattr(gridwise, name)
    if inspect.ismodule(thing):
        assert thing.__doc__
    elif inspect.isfunction(thing) or inspect.isclass(thing):
        assert thing.__doc__, f"gridwise.{name} has no docstring"
        assert ">>>" in thing.__doc__ or thing is gridwise.CartesianPartition, f"gridwise.{name} has no example"
