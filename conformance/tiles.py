"""Torch's operators and modules through `tiled`, on one worker, compared with torch's own results.

python -m conformance.tiles [name ...] [--fraction 0.05] [--seed 0] [--fresh]
"""

from __future__ import annotations

from . import modules, operators
from .by_tiles import check, tiles
from .suite import VERSION, Entry, Suite


def entries() -> list[Entry]:
    """The operators, and the modules."""
    return operators.entries() + modules.entries()


SUITE = Suite(
    "tiles",
    "Torch's operators and modules by tiles",
    f"The samples of torch {VERSION}'s two databases through `gridwise.tiled`, in tiles of one row and of two, "
    "along the last dim and along two dims; the other tensors are given to the function, or constants. Outputs, "
    "all gradients and buffers are compared with torch's own in float64; those with random numbers with what a "
    "single worker of `distribute` makes of the sample. *Gathered* here: the operator is computed whole, from all "
    "of its inputs.",
    entries,
    tiles,
    check,
    unit="operators and modules",
)
run = SUITE.run

if __name__ == "__main__":
    SUITE.main()
