"""All suites, one after another, compared with the page: `make conformance`.

    python -m conformance.run [suite ...] [--fraction 0.05] [--seed 0] [--fresh] [--write]

Findings are kept in out/conformance until a suite is through, so a run that was interrupted goes on where it stopped; `--fresh`
begins anew. It fails if anything is worse than in conformance/results, which the page shows. `--write` puts the new results
there, and writes the page, unless something is worse; `--accept` does so all the same.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .page import write
from .results import Result, recorded, regressions

KEPT = Path(__file__).parents[1] / "out" / "conformance"
SUITES = (
    "operators",
    "modules",
    "tiles",
    "fakes",
    "deferred",
    "dtypes",
    "on_processes",
    "shard_tensor",
    "dist_conv",
    "dtensor",
    "claims",
    "estimators",
    "docstrings",
    "formats",
    "checkouts.distdl",
    "checkouts.torchdistx",
    "checkouts.pytagi",
)
"""Each is a module of this package with `run(fraction, seed, kept)`, which returns its result; `kept` is its folder."""


def run_of(suite: str) -> Callable[[float, int, Path], Result]:
    """The function that runs a suite."""
    return importlib.import_module(f"conformance.{suite}").run


def forget(suite: str) -> None:
    for file in (KEPT / suite).glob("*.jsonl"):
        file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; all, if none is named")
    parser.add_argument("--fraction", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--accept", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"there is no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    worse = []
    for suite in arguments.suites or SUITES:
        if arguments.fresh:
            forget(suite)
        start = time.monotonic()
        result = run_of(suite)(arguments.fraction, arguments.seed, KEPT / suite)
        said = result.not_run or ", ".join(f"{count:,} {outcome}" for outcome, count in result.counts.items())
        print(f"{suite}: {said}; {time.monotonic() - start:.0f} s", flush=True)
        forget(suite)
        own = regressions(result, recorded().get(suite))
        worse += own
        if arguments.write and (arguments.accept or not own):
            if not (result.not_run and suite in recorded()):  # what was measured elsewhere stays
                result.save()
            write()
    for line in worse:
        print(f"worse than on the page: {line}")
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
