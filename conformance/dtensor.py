"""DTensor's tests of convolutions and views, as a table of facts (tables/dtensor.py)."""

from __future__ import annotations

from pathlib import Path

from .facts import main, result_of, run_tables
from .results import Result
from .tables.dtensor import SOURCE, TABLES

ABOUT = "The parameters of the tests of convolutions and views of torch's DTensor."


def empty() -> Result:
    return result_of("dtensor", "DTensor's tests of convolutions and views", SOURCE, TABLES, ABOUT)


def run(fraction: float, seed: int, kept: Path) -> Result:
    """The suite, for conformance.run; always all of it."""
    return run_tables(empty(), TABLES, kept)


if __name__ == "__main__":
    main(empty(), TABLES)
