"""ShardTensor's tests, as a table of facts (tables/shard_tensor.py)."""

from __future__ import annotations

from pathlib import Path

from .facts import main, result_of, run_tables
from .results import Result
from .tables.shard_tensor import SOURCE, TABLES

ABOUT = (
    "The parameters of ShardTensor's tests (NVIDIA PhysicsNeMo): convolution, pooling, padding, interpolation, normalisation, "
    "attention, views, selection, reductions."
)


def empty() -> Result:
    return result_of("shard_tensor", "ShardTensor's tests", SOURCE, TABLES, ABOUT)


def run(fraction: float, seed: int, kept: Path) -> Result:
    """The suite, for conformance.run; always all of it."""
    return run_tables(empty(), TABLES, kept)


if __name__ == "__main__":
    main(empty(), TABLES)
