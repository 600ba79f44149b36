"""The versions of torch that the tests of this package have seen; with another one, models are recorded after a self-check."""

from __future__ import annotations

import re

import torch

TESTED = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
"""One release of each minor version, oldest first: tests/torch_internals, what recording needs among it, passes with each."""


def is_tested(version: str) -> bool:
    """Whether a version is a release, for any device, of a minor version that has been tested."""
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+.*)?", version)
    return release is not None and any(known.startswith(f"{release[1]}.") for known in TESTED)


def this_version() -> str:
    return str(torch.__version__)
