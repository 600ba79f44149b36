"""DistConv's tests, as a table of facts (tables/dist_conv.py)."""

from __future__ import annotations

from pathlib import Path

from .facts import main, result_of, run_tables
from .results import Result
from .tables.dist_conv import SOURCE, TABLES

ABOUT = (
    "The parameters of the tests of LBANN's DistConv: basic, strides, periodic, splitting in two and three dims, kernels of "
    "several sizes, transposed, channels last, together with data parallelism, gradients of gradients."
)


def empty() -> Result:
    return result_of("dist_conv", "DistConv's tests", SOURCE, TABLES, ABOUT)


def run(fraction: float, seed: int, kept: Path) -> Result:
    """The suite, for conformance.run; always all of it."""
    return run_tables(empty(), TABLES, kept)


if __name__ == "__main__":
    main(empty(), TABLES)
