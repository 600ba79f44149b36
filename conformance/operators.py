"""Torch's operator database through `distribute`, each sample cut in many ways and compared with torch's own result.

python -m conformance.operators [name ...] [--fraction 0.05] [--seed 0] [--fresh]
"""

from __future__ import annotations

from functools import partial

from .on_threads import check
from .samples import name_of, operators, samples, ways
from .suite import VERSION, Entry, Suite


def entries() -> list[Entry]:
    """The operators."""
    return [Entry(name_of(op), partial(samples, op)) for op in operators()]


SUITE = Suite(
    "operators",
    "Torch's operator database",
    f"Torch {VERSION} describes its operators for its own tests: {len(operators())} of them, with samples of their "
    "arguments. Each sample runs through the placing and the programs of `gridwise.distribute`: its first tensor "
    "is cut along every dim by 2 and by 3, unevenly with an empty block, and along two dims at once; its other "
    "tensors are constants, whole on every worker, or cut too. Methods and in-place variants are cut along every "
    "dim by 2. Outputs and all gradients are compared with torch's own in float64. Workers are threads of one "
    "process.",
    entries,
    ways,
    check,
)
run = SUITE.run

if __name__ == "__main__":
    SUITE.main()
