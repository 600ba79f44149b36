"""Torch's operator database through `distribute`, each sample cut in many ways and compared with torch's own result.

    python -m conformance.operators [name ...] [--fraction 0.05] [--seed 0] [--fresh] [--plain] [--write]

Findings are kept in out/conformance/operators.jsonl; a run that was interrupted goes on where it stopped. With names, only
operators of these names. `--plain` takes only the simplest ways: each dim cut in turn, evenly, by 2.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from .findings import Finding, Kept, Outcome, outcome_of_all, reasons
from .on_threads import check
from .samples import Way, name_of, operators, samples, share_of, ways

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "conformance.md"
KEPT = ROOT / "out" / "conformance" / "operators.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--write", action="store_true", help="into docs/conformance.md")
    parser.add_argument("--kept", type=Path, default=KEPT)
    arguments = parser.parse_args()
    if arguments.fresh:
        arguments.kept.unlink(missing_ok=True)
    kept = Kept(arguments.kept)
    chosen = [op for op in operators() if not arguments.names or op.name in arguments.names]
    findings: list[Finding] = []
    with Progress() as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task = progress.add_task("operators", total=len(chosen))
        for op in chosen:
            progress.update(task, description=name_of(op))
            found = examine(op, kept, arguments.fraction, arguments.seed, arguments.plain)
            findings += found
            for each in found:
                if each.outcome == "wrong":
                    progress.console.print(f"wrong: {each.case}: {each.text[:200]}", markup=False)
            progress.advance(task)
    share = f"{'All' if arguments.fraction >= 1 else f'{arguments.fraction:.1%}'} of the cases, seed {arguments.seed}."
    found = page(findings, len(chosen), share)
    print(found)
    if arguments.write:
        PAGE.write_text(found)
    sys.exit(any(finding.outcome == "wrong" for finding in findings))


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


TITLES: dict[Outcome, str] = {
    "wrong": "Wrong",
    "refused": "Refused",
    "gathered": "Gathered without need",
}
EXPLAINED: dict[Outcome, str] = {
    "wrong": "Another result than torch's, or an error that is not Gridwise's own.",
    "refused": "An error on all workers, before anything runs.",
    "gathered": "Equal, but a worker receives all of a tensor that was cut, in dims that the operator does not combine.",
}


def page(findings: Sequence[Finding], entries: int, share: str) -> str:
    """The page of the documentation: counts of cases and operators by outcome, and why."""
    by_operator: dict[str, list[Finding]] = {}
    for finding in findings:
        by_operator.setdefault(finding.operator, []).append(finding)
    outcomes = {name: outcome_of_all(own) for name, own in by_operator.items()}
    cases, counts = Counter(finding.outcome for finding in findings), Counter(outcomes.values())
    counts["inapplicable"] += entries - len(by_operator)
    rows = [
        "# Conformance",
        "",
        "How Gridwise does on tests that others wrote. `make conformance` runs them and writes this page.",
        "",
        "## Torch's operator database",
        "",
        f"Torch {torch.__version__.partition('+')[0]} describes its operators for its own tests: {entries} of them, with "
        "samples of their arguments. Each sample runs through the placing and the programs of `gridwise.distribute`: its first "
        "tensor is cut along every dim by 2 and by 3, unevenly with an empty block, and along two dims at once; its other "
        "tensors are constants, whole on every worker, or cut too. Outputs and all gradients are compared with torch's own in "
        f"float64. Workers are threads of one process. {share}",
        "",
        "| | equal, on blocks | gathered without need | refused | wrong | torch refuses it, or nothing to cut |",
        "|---|---|---|---|---|---|",
    ]
    kinds: list[Outcome] = ["equal", "gathered", "refused", "wrong", "inapplicable"]
    for what, counted in (("operators", counts), ("cases", cases)):
        rows.append(f"| {what} | " + " | ".join(f"{counted[kind]:,}" for kind in kinds) + " |")
    rows += ["", "An operator counts by the worst of its cases."]
    for kind, title in TITLES.items():
        own = sorted(name for name, outcome in outcomes.items() if outcome == kind)
        if not own:
            continue
        rows += [
            "",
            f"### {title}",
            "",
            EXPLAINED[kind],
            "",
            f"Operators: {', '.join(f'`{name}`' for name in own)}.",
            "",
        ]
        rows += ["| operators | why |", "|---|---|"]
        rows += [f"| {count} | {escaped(text)} |" for text, count in reasons(findings, kind).most_common()]
    return "\n".join(rows) + "\n"


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*").replace("_", "\\_")


if __name__ == "__main__":
    main()
