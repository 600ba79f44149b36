"""What docs/comparison.md claims of Gridwise, as calls; peers.py runs the same calls in other libraries."""

from __future__ import annotations

from pathlib import Path

import torch

from .facts import examined, main, result_of
from .findings import Kept
from .results import Result, summarised
from .tables.claims import TABLES, claim_of

ABOUT = "The calls behind the comparison with other libraries, on two workers, or 2 x 2."
VERSION = f"torch {torch.__version__.partition('+')[0]}"


def empty() -> Result:
    result = result_of("claims", "The calls of the comparison", VERSION, TABLES, ABOUT)
    result.unit = "claims"
    return result


def run(fraction: float, seed: int, kept: Path) -> Result:
    """The suite, for conformance.run; always all of it."""
    findings = examined(TABLES, Kept(kept / "claims.jsonl"), 1.0, seed)
    for finding in findings:
        finding.operator = claim_of(finding.case)
    return summarised(empty(), findings)


if __name__ == "__main__":
    main(empty(), TABLES)
