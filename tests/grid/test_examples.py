"""The examples in the docstrings of the geometry."""

import doctest
import importlib
import pkgutil

import pytest

import gridwise.grid


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(gridwise.grid.__path__)])
def test_the_examples_of(name: str) -> None:
    module = importlib.import_module(f"gridwise.grid.{name}")
    assert doctest.testmod(module).failed == 0
