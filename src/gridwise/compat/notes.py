"""One note for each old name whose default, or whose result, is not that of Gridwise's own: said once, by one worker."""

from __future__ import annotations

import warnings

from ..comm.settings import RANKS, launched_number

_said: set[str] = set()


class CompatibilityNote(UserWarning):
    """An old name does what it always did, and the new one does something else."""


def note(name: str, text: str) -> None:
    """Say once in this program what is different about `name`."""
    if name not in _said and is_first_worker():
        _said.add(name)
        warnings.warn(f"{name}: {text}", CompatibilityNote, stacklevel=4)


def is_first_worker() -> bool:
    """Whether this process is the first of its job, by the variables that launchers set."""
    return not launched_number(RANKS)
