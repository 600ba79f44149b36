"""The versions that tests of this package have seen; with another torch, models are recorded after a self-check.

README.md, docs/versions.md and pyproject.toml say the same: `python tools/version_tables.py` writes the tables, tests compare.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch


class VersionPair(NamedTuple):
    """Tests that have passed with a Python and a torch, and the day."""

    python: str
    torch: str
    day: str
    tests: str = "internals"


RUNS = (
    VersionPair("3.11", "2.11.0", "2026-11-18"),
    VersionPair("3.11", "2.12.1", "2026-11-18"),
    VersionPair("3.11", "2.13.0", "2026-11-18", "all"),
    VersionPair("3.11", "2.14.1", "2026-11-18"),
    VersionPair("3.11", "2.15.0", "2026-11-18"),
    VersionPair("3.13", "2.13.0", "2026-11-19"),
)
"""Oldest torch first, one release of each minor version. "all": `make test`. "internals": tests/torch_internals, what recording
needs among it. "in part": some tests have failed, which docs/versions.md names."""

TESTED = tuple(dict.fromkeys(run.torch for run in RUNS if run.tests != "in part"))
"""The releases of torch, oldest first."""

PYTHONS = tuple(dict.fromkeys(run.python for run in RUNS if run.tests != "in part"))
"""The versions of Python with which all tests have passed, or those of what torch keeps to itself."""


def is_tested(version: str) -> bool:
    """Whether a version is a release, for any device, of a minor version that has been tested."""
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+.*)?", version)
    return release is not None and any(known.startswith(f"{release[1]}.") for known in TESTED)


def this_version() -> str:
    return str(torch.__version__)
