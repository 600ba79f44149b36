"""All suites, two at a time, compared with the page: `make conformance`.

    python -m conformance.run [suite ...] [--fraction 0.05] [--seed 0] [--jobs 2] [--fresh] [--write]

A fraction is that of the cases of torch's databases; the other suites always run all of theirs. Findings are kept in
out/conformance until a suite is through, so a run that was interrupted goes on where it stopped; `--fresh` begins anew. It
fails if anything is worse than in conformance/results, which the page shows. `--write` puts the new results there, and writes
the page, unless something is worse; `--accept` does so all the same.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from .page import write
from .results import Result, recorded, regressions

KEPT = Path(__file__).parents[1] / "out" / "conformance"
SUITES = (
    "operators",
    "tiles",
    "dtypes",
    "modules",
    "on_processes",
    "dist_conv",
    "shard_tensor",
    "dtensor",
    "fakes",
    "deferred",
    "claims",
    "estimators",
    "docstrings",
    "formats",
    "checkouts.distdl",
    "checkouts.torchdistx",
    "checkouts.pytagi",
)
"""Each is a module of this package with `run(fraction, seed, kept)`, which returns its result; `kept` is its folder.
Those that take longest come first, so that few run alone at the end."""


def run_of(suite: str) -> Callable[[float, int, Path], Result]:
    """The function that runs a suite."""
    return importlib.import_module(f"conformance.{suite}").run


def forget(suite: str) -> None:
    for file in (KEPT / suite).glob("*.jsonl"):
        file.unlink()


def examined(suite: str, fraction: float, seed: int, saves: bool, accepts: bool) -> list[str]:
    """Run a suite, and save its result if asked to; what is worse than on the page."""
    start, computed = time.monotonic(), time.process_time()
    result = run_of(suite)(fraction, seed, KEPT / suite)
    said = result.not_run or ", ".join(f"{count:,} {outcome}" for outcome, count in result.counts.items())
    seconds = f"{time.monotonic() - start:.0f} s, of processor {time.process_time() - computed:.0f} s"
    print(f"{suite}: {said}; {seconds}", flush=True)
    forget(suite)
    page = recorded().get(suite)
    worse = regressions(result, page)
    was_elsewhere = result.not_run and page is not None  # what was measured elsewhere stays
    if saves and (accepts or not worse) and not was_elsewhere:
        result.save()
    return worse


def all_examined(suites: Sequence[str], jobs: int, *settings: Any) -> Iterator[list[str]]:
    """What is worse, suite by suite; several suites run side by side, each in a process with one thread."""
    if jobs == 1 or len(suites) == 1:
        yield from (examined(suite, *settings) for suite in suites)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    start = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, start, max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(examined, suite, *settings) for suite in suites]):
            yield done.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; all, if none is named")
    parser.add_argument("--fraction", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="how many suites run side by side")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--accept", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"there is no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    suites = arguments.suites or SUITES
    if arguments.fresh:
        for suite in suites:
            forget(suite)
    start, worse, settings = time.monotonic(), list[str](), (arguments.write, arguments.accept)
    for own in all_examined(suites, arguments.jobs, arguments.fraction, arguments.seed, *settings):
        worse += own
        if arguments.write and (arguments.accept or not own):
            write()
    print(f"all: {time.monotonic() - start:.0f} s")
    for line in worse:
        print(f"worse than on the page: {line}")
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
