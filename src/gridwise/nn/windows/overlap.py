"""Switches of earlier versions that no longer have any effect: they warn, and will be removed in the next version."""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager, nullcontext


def overlap(enabled: bool) -> AbstractContextManager[None]:
    """No effect: a layer is now computed in the same way with or without this.

    Parameters
    ----------
    enabled : not used

    Examples
    --------
    >>> with warnings.catch_warnings(action="ignore"), gridwise.nn.overlap(True):
    ...     pass  # as without it
    """
    return _without_effect("overlap")


def keep_fetched(enabled: bool) -> AbstractContextManager[None]:
    """No effect: padded copies of large blocks are never kept for backward, those of small ones always are.

    Parameters
    ----------
    enabled : not used

    Examples
    --------
    >>> with warnings.catch_warnings(action="ignore"), gridwise.nn.keep_fetched(True):
    ...     pass  # as without it
    """
    return _without_effect("keep_fetched")


def _without_effect(name: str) -> AbstractContextManager[None]:
    _warn(f"`gridwise.nn.{name}`", "delete the `with`, and keep its body")
    return nullcontext()


def _warn(what: str, fix: str) -> None:
    words = f"{what} has no effect any more and will be removed in the next version.\n  fix: {fix}."
    warnings.warn(words, FutureWarning, stacklevel=4)


for _variable in ("GRIDWISE_OVERLAP", "GRIDWISE_KEEP_FETCHED"):
    if _variable in os.environ:
        _warn(f"`{_variable}` (={os.environ[_variable]!r})", "unset the variable")
