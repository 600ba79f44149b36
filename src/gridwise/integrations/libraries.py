"""Libraries that Gridwise does not need, and its adapters do."""

from __future__ import annotations

import importlib
from types import ModuleType

from ..errors import UnsupportedError


def library(name: str) -> ModuleType:
    """The library of that name, or an error that says how to install it."""
    top = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"gridwise.integrations.{top} needs {top}, which cannot be imported: {error}.",
            fix="pip install 'gridwise[integrations]'.",
        ) from error
