"""Warnings about old names whose default or result differs from Gridwise's own: each given once, by one worker."""

from __future__ import annotations

import warnings

from gridwise.comm.settings import RANKS, launched_number

_given: set[str] = set()


class CompatibilityNote(UserWarning):
    """An old name behaves as it always did, and its Gridwise counterpart behaves differently."""


def note(name: str, text: str) -> None:
    """Warn, once per process and only on the first worker, about what is different with `name`."""
    if name not in _given and is_first_worker():
        _given.add(name)
        warnings.warn(f"{name}: {text}", CompatibilityNote, stacklevel=4)


def is_first_worker() -> bool:
    """Whether this process is the first of its job, by the variables that launchers set."""
    return not launched_number(RANKS)
