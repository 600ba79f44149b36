"""Benchmarks that need many cores: weak scaling on 16 workers, a batch split over 8, and the order of grids of 8.

    python benchmarks/many_workers.py

The same as `scaling.py --workers 8 16 --transport gloo`, `data_parallel.py --workers 8` and `planning_order.py
--workers 8 --transport gloo --repeats 7`; without 16 workers if there are fewer cores.
"""

from __future__ import annotations

import os
import sys

import data_parallel
import planning_order
import scaling
from run import NOTHING_HERE

LEAST = 8


def main() -> None:
    if (cores := len(os.sched_getaffinity(0))) < LEAST:
        print(f"{cores} cores: nothing to measure for {LEAST} workers and more")
        sys.exit(NOTHING_HERE)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    scaling.main(["--workers", "8", "16", "--transport", "gloo"])
    data_parallel.main(["--workers", "8"])
    planning_order.main(["--workers", "8", "--transport", "gloo", "--repeats", "7"])


if __name__ == "__main__":
    main()
