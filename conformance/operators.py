"""Torch's operator database through `distribute`, each sample cut in many ways and compared with torch's own result.

    python -m conformance.operators [name ...] [--fraction 0.05] [--seed 0] [--fresh] [--plain]

Findings are kept in out/conformance/operators; a run that was interrupted goes on where it stopped. With names, only
operators of these names. `--plain` takes only the simplest ways: each dim cut in turn, evenly, by 2. `python -m conformance.run
operators` runs all of them and compares the result with the page.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from .findings import Finding, Kept
from .on_threads import check
from .page import page
from .results import Result, summarised
from .samples import Way, name_of, operators, samples, share_of, ways

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "out" / "conformance" / "operators" / "operators.jsonl"
VERSION = torch.__version__.partition("+")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--kept", type=Path, default=KEPT)
    arguments = parser.parse_args()
    if arguments.fresh:
        arguments.kept.unlink(missing_ok=True)
    kept = Kept(arguments.kept)
    chosen = [op for op in operators() if not arguments.names or op.name in arguments.names]
    findings = examined(chosen, kept, arguments.fraction, arguments.seed, arguments.plain)
    result = summary(findings, len(chosen), arguments.fraction, arguments.seed)
    print(page([result]))
    sys.exit("wrong" in result.counts)


def examined(chosen: Sequence[Any], kept: Kept, fraction: float, seed: int, plain: bool = False) -> list[Finding]:
    """Findings for these entries; what is wrong is printed at once."""
    findings: list[Finding] = []
    with Progress() as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task = progress.add_task("operators", total=len(chosen))
        for op in chosen:
            progress.update(task, description=name_of(op))
            found = examine(op, kept, fraction, seed, plain)
            findings += found
            for each in found:
                if each.outcome == "wrong":
                    progress.console.print(f"wrong: {each.case}: {each.text[:200]}", markup=False)
            progress.advance(task)
    return findings


def examine(op: Any, kept: Kept, fraction: float = 1.0, seed: int = 0, plain: bool = False) -> list[Finding]:
    """Findings for the chosen cases of an operator, of which there is at least one; those that are kept are taken over."""
    cases = [(sample, way) for sample in samples(op) for way in ways(sample) if not plain or _is_plain(way)]
    names = [f"{sample.name}: {way}" for sample, way in cases]
    shares = [share_of(name, seed) for name in names]
    bound = max(fraction, min(shares, default=0.0) + 1e-18)
    wanted = {name for name, share in zip(names, shares, strict=True) if share <= bound}
    missing: dict[str, tuple[Any, list[Way]]] = {}
    for name, (sample, way) in zip(names, cases, strict=True):
        if name in wanted and name not in kept.found:
            missing.setdefault(sample.name, (sample, []))[1].append(way)
    for sample, own in missing.values():
        kept.add(check(sample, own))
    return [kept.found[name] for name in names if name in wanted]


def _is_plain(way: Way) -> bool:
    return sum(way.shape) == len(way.shape) + 1 and way.others == "whole"


def summary(findings: Sequence[Finding], entries: int, fraction: float = 1.0, seed: int = 0) -> Result:
    """The result of so many entries of the database."""
    about = (
        f"Torch {VERSION} describes its operators for its own tests: {entries} of them, with samples of their arguments. Each "
        "sample runs through the placing and the programs of `gridwise.distribute`: its first tensor is cut along every dim by "
        "2 and by 3, unevenly with an empty block, and along two dims at once; its other tensors are constants, whole on every "
        "worker, or cut too. Outputs and all gradients are compared with torch's own in float64. Workers are threads of one "
        "process."
    )
    silent = entries - len({finding.operator for finding in findings})
    result = Result("operators", "Torch's operator database", f"torch {VERSION}", about, fraction=fraction, seed=seed)
    return summarised(result, findings, silent)


def run(fraction: float, seed: int, kept: Path) -> Result:
    """The suite, for conformance.run."""
    chosen = list(operators())
    return summary(examined(chosen, Kept(kept / "operators.jsonl"), fraction, seed), len(chosen), fraction, seed)


if __name__ == "__main__":
    main()
