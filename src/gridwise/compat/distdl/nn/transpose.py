"""`Repartition` under its first name, which DistDL gave up: using it warns."""

from __future__ import annotations

import warnings
from typing import Any

from .repartition import Repartition as Repartition


def __getattr__(name: str) -> Any:
    if name != "DistributedTranspose":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("DistributedTranspose is Repartition now.", DeprecationWarning, stacklevel=2)
    return Repartition
