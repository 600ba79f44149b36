"""A suite over torch's databases: which of its cases are run, what is kept, and what comes of it.

Each entry has samples, each sample is run in many ways, and a case is a sample in one of them. A fraction of the cases is
chosen by a hash of their names and the seed, and at least one of each entry.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from .findings import Finding, Kept
from .page import page
from .results import Result, summarised
from .samples import Sample, share_of

ROOT = Path(__file__).parents[1]
VERSION = torch.__version__.partition("+")[0]


@dataclass(frozen=True)
class Entry:
    """An operator, or a module."""

    name: str
    samples: Callable[[], Iterator[Sample]]
    """Makes its samples, the same in every run."""


@dataclass(frozen=True)
class Suite:
    """A suite over torch's databases.

    Parameters
    ----------
    name : on the command line; that of its module
    title : on the page
    about : what a case is, and with what it is compared
    entries : makes the entries
    ways : the ways in which a sample is run; their texts are part of the cases' names
    check : what came of a sample that is run in some ways
    unit : what an entry is
    factor : which part of the fraction that is asked for is run
    """

    name: str
    title: str
    about: str
    entries: Callable[[], Sequence[Entry]]
    ways: Callable[[Sample], Sequence[Any]]
    check: Callable[[Sample, Sequence[Any]], Iterable[Finding]]
    unit: str = "operators"
    factor: float = 1.0

    def run(self, fraction: float, seed: int, kept: Path) -> Result:
        """The suite, for conformance.run; findings are kept in the folder."""
        entries = self.entries()
        findings = self.examined(entries, Kept(kept / f"{self.name}.jsonl"), fraction * self.factor, seed)
        return self.summary(findings, len(entries), fraction * self.factor, seed)

    def main(self) -> None:
        """The command: some entries, or the simplest ways only."""
        parser = argparse.ArgumentParser(description=self.title)
        parser.add_argument("names", nargs="*", help="of entries; all, if none is given")
        parser.add_argument("--fraction", type=float, default=1.0)
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--fresh", action="store_true")
        parser.add_argument("--kept", type=Path, default=ROOT / "out" / "conformance" / self.name / "by_hand.jsonl")
        arguments = parser.parse_args()
        if arguments.fresh:
            arguments.kept.unlink(missing_ok=True)
        names = arguments.names
        chosen = [each for each in self.entries() if not names or {each.name, each.name.partition(".")[0]} & {*names}]
        findings = self.examined(chosen, Kept(arguments.kept), arguments.fraction, arguments.seed)
        result = self.summary(findings, len(chosen), arguments.fraction, arguments.seed)
        print(page([result]))
        sys.exit("wrong" in result.counts)

    def examined(self, entries: Sequence[Entry], kept: Kept, fraction: float, seed: int) -> list[Finding]:
        """Findings for these entries; what is wrong is printed at once."""
        findings: list[Finding] = []
        with Progress() as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            task = progress.add_task(self.name, total=len(entries))
            for entry in entries:
                progress.update(task, description=f"{self.name}: {entry.name}")
                found = self.examine(entry, kept, fraction, seed)
                findings += found
                for each in found:
                    if each.outcome == "wrong":
                        progress.console.print(f"wrong: {each.case}: {each.text[:200]}", markup=False)
                progress.advance(task)
        return findings

    def examine(self, entry: Entry, kept: Kept, fraction: float = 1.0, seed: int = 0) -> list[Finding]:
        """Findings for the chosen cases of an entry, of which there is at least one; those that are kept are taken over."""
        cases = [(sample, way) for sample in entry.samples() for way in self.ways(sample)]
        names = [f"{sample.name}: {way}" for sample, way in cases]
        shares = [share_of(name, seed) for name in names]
        bound = max(fraction, min(shares, default=0.0) + 1e-18)
        wanted = {name for name, share in zip(names, shares, strict=True) if share <= bound}
        missing: dict[str, tuple[Sample, list[Any]]] = {}
        for name, (sample, way) in zip(names, cases, strict=True):
            if name in wanted and name not in kept.found:
                missing.setdefault(sample.name, (sample, []))[1].append(way)
        for sample, own in missing.values():
            kept.add(self.check(sample, own))
        return [kept.found[name] for name in names if name in wanted]

    def summary(self, findings: Sequence[Finding], entries: int, fraction: float = 1.0, seed: int = 0) -> Result:
        """The result of so many entries of the database."""
        silent = entries - len({finding.operator for finding in findings})
        result = Result(self.name, self.title, f"torch {VERSION}", self.about, self.unit, fraction, seed)
        return summarised(result, findings, silent)
