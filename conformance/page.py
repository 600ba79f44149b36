"""docs/conformance.md out of the results of all suites: one table, and a section for each suite that is not perfect.

python -m conformance.page      # after a change of a result by hand, or of this file
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .results import IMPERFECT, RECORDED, Reason, Result, recorded
from .tables.claims import CLAIMS, claim_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "conformance.md"
README = ROOT / "README.md"
QUOTED = ("operators", "shard_tensor", "dist_conv")
"""Suites of which the README says how many cases are equal."""
HEAD = """# Conformance

How Gridwise does on tests and tables of facts that others wrote. `make conformance` runs them, compares what comes of them with
this page, fails if anything is worse, and writes the page anew.

*Equal*: what torch itself, or the library whose suite it is, makes of the case, with all gradients. *Gathered*: equal too, but
a worker receives all of a tensor that was cut, in dims that the operator does not combine. *Refused*: an error on all workers,
before anything runs. *Wrong*: another result, or an error that is not Gridwise's own. Cases that torch itself refuses are left
out.

A case of torch's databases is one of their samples, cut in one way. *Share*: so many of all cases, chosen by a hash of their
names and the seed, and at least one of every operator or module. `make conformance FRACTION=1` runs all.
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
        if result.suite == "claims":
            rows += _peers(result)
    return "\n".join(rows) + "\n"


def _row(result: Result) -> str:
    if result.not_run:
        return f"| {result.title} | {result.version} | - | not run: {escaped(result.not_run)} | | | | |"
    share = "all" if result.fraction >= 1 else f"{100 * result.fraction:.3g}%, seed {result.seed}"
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


def _peers(ours: Result, folder: Path = RECORDED / "peers") -> list[str]:
    """The same calls in other libraries, by what they show."""
    peers = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    bad = {outcome: Counter(ours.bad([outcome])) for outcome in IMPERFECT}
    rows = [
        "",
        "### In other libraries",
        "",
        "The same calls, as `python -m conformance.peers` runs them on processes over gloo. *Gathers*: right, by gathering the "
        "whole tensor on every worker. *Raises*: an error in forward or backward. *Wrong*: another result, without an error. "
        "ShardTensor's handlers were registered by hand: by itself it does so only where there is a GPU, which its attention "
        "that is not causal asks for here.",
        "",
        f"| | Gridwise | {' | '.join(each['library'] + ', ' + each['version'] for each in peers)} |",
        f"|---|---|{'---|' * len(peers)}",
    ]
    for claim, tables in CLAIMS.items():
        own = Counter({{"gathered": "gathers"}.get(outcome, outcome): bad[outcome][claim] for outcome in IMPERFECT})
        own["right"] = len(tables) - own.total()
        cells = [own, *(_seen(each, claim) for each in peers)]
        rows.append(f"| {claim} | {' | '.join(_counted(cell) for cell in cells)} |")
    return rows


def _seen(peer: dict[str, Any], claim: str) -> Counter[str]:
    return Counter(outcome for case, (outcome, _) in peer["cases"].items() if claim_of(case) == claim)


def _counted(outcomes: Counter[str]) -> str:
    """In words, without the number if all are the same."""
    found = [(outcome, count) for outcome, count in outcomes.most_common() if count]
    return found[0][0] if len(found) == 1 else ", ".join(f"{count} {outcome}" for outcome, count in found)


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


def quoted(text: str, results: Mapping[str, Result]) -> str:
    """The README with the numbers of the page: "1 of 2 cases", in this order of suites."""
    numbers = iter([(results[suite].equal, results[suite].cases) for suite in QUOTED])
    found, count = re.subn(r"[\d,]+ of [\d,]+ cases", lambda match: "{:,} of {:,} cases".format(*next(numbers)), text)
    if count != len(QUOTED):
        raise ValueError(f"the README says {count} times how many cases are equal, not {len(QUOTED)} times")
    return found


def write() -> None:
    """The page, and the README's numbers, out of conformance/results."""
    PAGE.write_text(page(recorded().values()))
    README.write_text(quoted(README.read_text(), recorded()))


if __name__ == "__main__":
    write()
