"""docs/conformance.md out of the results of all suites: one table, and a section for each suite that is not perfect.

python -m conformance.page      # after a change of a result by hand, or of this file
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .results import IMPERFECT, Reason, Result, recorded

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "conformance.md"
HEAD = """# Conformance

How Gridwise does on tests and tables of facts that others wrote. `make conformance` runs them, compares what comes of them with
this page, fails if anything is worse, and writes the page anew.

*Equal*: what torch itself, or the library whose suite it is, makes of the case, with all gradients. *Gathered*: equal too, but
a worker receives all of a tensor that was cut, in dims that the operator does not combine. *Refused*: an error on all workers,
before anything runs. *Wrong*: another result, or an error that is not Gridwise's own. Cases that torch itself refuses are left
out.
"""
TITLES = {"wrong": "Wrong", "refused": "Refused", "gathered": "Gathered without need"}
MOST = 40
"""Subjects that are named for a reason; of more, the number is given."""


def page(results: Iterable[Result]) -> str:
    """The text of the page."""
    results = sorted(results, key=lambda result: (bool(result.not_run), result.title))
    rows = [
        HEAD,
        "| suite | version | share | cases | equal | gathered | refused | wrong |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(result) for result in results),
    ]
    for result in results:
        rows += _section(result)
    return "\n".join(rows) + "\n"


def _row(result: Result) -> str:
    if result.not_run:
        return f"| {result.title} | {result.version} | - | not run: {escaped(result.not_run)} | | | | |"
    share = "all" if result.fraction >= 1 else f"{result.fraction:.1%}, seed {result.seed}"
    counts = " | ".join(f"{result.counts.get(outcome, 0):,}" for outcome in ("equal", "gathered", "refused", "wrong"))
    return f"| {result.title} | {result.version} | {share} | {result.cases:,} | {counts} |"


def _section(result: Result) -> list[str]:
    if result.not_run:
        return []
    kinds = ("equal", "gathered", "refused", "wrong", "inapplicable")
    rows = ["", f"## {result.title}", "", result.about, ""]
    if result.unit:
        counts = [f"{result.subjects[kind]:,} {kind}" for kind in kinds if result.subjects.get(kind)]
        rows += [f"By {result.unit}, each by the worst of its cases: {', '.join(counts)}."]
    for outcome in IMPERFECT:
        own = [reason for reason in result.why if reason.outcome == outcome]
        if own:
            rows += [
                "",
                f"### {TITLES[outcome]}: {result.suite}",
                "",
                f"| cases | why | {result.unit} |",
                "|---|---|---|",
            ]
            rows += [_why(reason) for reason in own]
    return rows


def _why(reason: Reason) -> str:
    subjects = (
        ", ".join(f"`{each}`" for each in reason.subjects) if len(reason.subjects) <= MOST else len(reason.subjects)
    )
    return f"| {sum(reason.subjects.values()):,} | {escaped(reason.text)} | {subjects} |"


def escaped(text: str) -> str:
    """Text without meaning for markdown."""
    for mark in "|<*_[":
        text = text.replace(mark, "\\" + mark)
    return text


def main() -> None:
    PAGE.write_text(page(recorded().values()))


if __name__ == "__main__":
    main()
