"""Small helper processes that must start quickly: modules of this folder, run by a bare Python.

`python -m gridwise.comm.supervision.hub` would import Gridwise, and torch with it, which takes seconds and hundreds of
megabytes. A module that imports only the standard library and modules like itself starts in 0.1 s.
"""

from __future__ import annotations

import sys
from pathlib import Path

_START = """
import importlib, sys, types
_, folder, module, *arguments = sys.argv
package = types.ModuleType("gridwise_beside")
package.__path__ = [folder]
sys.modules[package.__name__] = package
importlib.import_module(f"{package.__name__}.{module}").main(arguments)
"""


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs `main(arguments)` of a module in this folder."""
    return [sys.executable, "-I", "-S", "-c", _START, str(Path(__file__).parent), module, *arguments]
