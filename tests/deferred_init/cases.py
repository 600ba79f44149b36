"""Constructors to defer: every torch.nn layer with parameters or buffers, what people do to them, three architectures.

`CASES` maps a name to a function without arguments; `test_bitwise.py` runs each eagerly and deferred.
"""

from __future__ import annotations

from . import architectures, drawing, habits, layers, parametrized
from .registry import CASES

__all__ = ["CASES", "architectures", "drawing", "habits", "layers", "parametrized"]
