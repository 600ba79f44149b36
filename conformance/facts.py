"""Cases of tables of facts (tables/) on workers that are threads, compared with torch's own results.

python -m conformance.shard_tensor [part of a name] [--fraction 0.05] [--seed 0]       # dist_conv, dtensor likewise
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .findings import Finding, Kept
from .on_threads import check
from .page import page
from .results import Result, summarised
from .samples import Sample, Way, share_of
from .tables.calls import MOST, call_of, tensors_of
from .tables.table import Case, Table, cases
from .twice import check_twice

LOOSE = 5e-2
"""What the libraries' own tests allow under autocast to bfloat16, at most."""


def sample_of(case: Case) -> Sample:
    """The case as a function of its tensors, parameters among them."""
    table, dtype = case.table, torch.float32 if case.table.autocast else torch.float64
    own = tensors_of(case, dtype)
    inner, parameters = call_of(case, [tuple(x.shape) for x in own], dtype)

    def call(*tensors: Tensor) -> Any:
        if table.pad_first:
            tensors = (F.pad(tensors[0], table.pad_first, mode="circular"), *tensors[1:])
        with torch.autocast("cpu", torch.bfloat16, enabled=table.autocast):
            return inner(*tensors)

    given = [x.detach().requires_grad_(case.gradient) for x in (*own, *parameters)]
    return Sample(table.call, 0, call, tuple(given), table.cut_tensors[0])


def way_of(case: Case) -> Way:
    """How the case is cut."""
    extents = [1] * len(case.shapes[case.table.cut_tensors[0]])
    for dim, workers in case.cut:
        extents[dim] = workers
    return Way(tuple(extents), which=case.table.cut_tensors)


def found_for(case: Case) -> Finding:
    """What came of a case."""
    sample, way = sample_of(case), way_of(case)
    if case.table.second:
        found = check_twice(sample, way, case.table.second == "both")
    else:
        (found,) = check(sample, [way], LOOSE if case.table.autocast else 0.0)
    found.case, found.operator = case.name, case.table.call
    return found


def examined(tables: tuple[Table, ...], kept: Kept, fraction: float, seed: int, part: str = "") -> list[Finding]:
    """Findings for the chosen cases, of which there is at least one; those that are kept are taken over."""
    every = [case for case in cases(tables) if part in case.name]
    bound = max(fraction, min((share_of(case.name, seed) for case in every), default=0.0) + 1e-18)
    chosen = [case for case in every if share_of(case.name, seed) <= bound]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in chosen:
            if case.name not in kept.found:
                kept.add([found_for(case)])
            finding = kept.found[case.name]
            if finding.outcome in ("wrong", "refused"):
                print(f"{finding.outcome}: {case.name}: {finding.text[:300]}", flush=True)
    return [kept.found[case.name] for case in chosen]


def result_of(suite: str, title: str, source: str, tables: tuple[Table, ...], about: str) -> Result:
    """A result without findings."""
    every = list(cases(tables))
    refused = sum(case.refused_there for case in every)
    there = f" {refused} of them are marked there as expected failures." if refused else ""
    about = (
        f"{about} {len(every)} cases.{there} The table is of facts: modules, arguments, shapes and cuts; expected is what "
        "torch computes of the whole tensors, in outputs and all gradients, in float64 (under autocast: float32, within what "
        f"the library's own test allows). Inputs of more than {MOST:,} numbers are halved along their longest dims of space. "
        "Workers are threads of one process."
    )
    return Result(suite, title, source, about, unit="calls")


def run_tables(result: Result, tables: tuple[Table, ...], kept: Path) -> Result:
    """The result with what comes of the tables: always of all their cases, which take minutes."""
    return summarised(result, examined(tables, Kept(kept / f"{result.suite}.jsonl"), 1.0, 0))


def main(result: Result, tables: tuple[Table, ...]) -> None:
    """The command of one library's tables; findings are not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    result.fraction, result.seed = arguments.fraction, arguments.seed
    found: Iterable[Finding] = examined(tables, _Forgetful(), arguments.fraction, arguments.seed, arguments.part)
    print(page([summarised(result, found)]))
    sys.exit("wrong" in result.counts)


class _Forgetful(Kept):
    """Findings of this run only."""

    def __init__(self) -> None:
        self.found = {}

    def add(self, findings: Iterable[Finding]) -> None:
        self.found.update({finding.case: finding for finding in findings})
