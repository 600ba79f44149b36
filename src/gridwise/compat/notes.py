"""Warnings about old names whose default or result differs from Gridwise's own: each given once, by one worker."""

from __future__ import annotations

import os
import warnings

_said: set[str] = set()


class CompatibilityNote(UserWarning):
    """An old name behaves as it always did, and its Gridwise counterpart behaves differently."""


def note(name: str, text: str) -> None:
    """Warn, once per process and only on the first worker, about what is different with `name`."""
    if name not in _said and is_first_worker():
        _said.add(name)
        warnings.warn(f"{name}: {text}", CompatibilityNote, stacklevel=4)


def is_first_worker() -> bool:
    """Whether this process is the first of its job, judged by the variables that launchers set."""
    names = ("RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return next((os.environ[name] for name in names if os.environ.get(name)), "0") == "0"
