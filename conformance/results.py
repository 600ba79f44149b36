"""What came of a suite, in one file of JSON for each: what the page is made of, and what a later run is compared with.

    {"suite": "operators", "title": "...", "version": "...", "about": "...", "unit": "operators", "fraction": 0.05, "seed": 0,
     "counts": {"equal": 1272, "gathered": 29, "refused": 53, "wrong": 2, "inapplicable": 9},
     "subjects": {"equal": 624, ...},
     "why": [{"outcome": "refused", "text": "...", "subjects": {"bincount": 3}}]}

A suite runs cases of subjects (an operator, a layer, a test file) and makes its result of them with `summarised`. `counts` has
cases, `subjects` has subjects by the worst of their cases; `why` says for each reason which subjects it was, in how many cases.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .findings import Finding, Outcome, outcome_of_all

RECORDED = Path(__file__).parent / "results"
"""Those of the page."""
IMPERFECT: tuple[Outcome, ...] = ("wrong", "refused", "gathered")
"""From the worst on."""


@dataclass
class Reason:
    """Why cases did not come out equal, on blocks."""

    outcome: Outcome
    text: str
    subjects: dict[str, int]
    """In how many cases of each."""


@dataclass
class Result:
    """What came of a suite."""

    suite: str
    """Its name on the command line."""
    title: str
    version: str
    """Of what is tested against."""
    about: str
    """What a case is, and with what it is compared, in a paragraph of the page."""
    unit: str = "operators"
    """What its subjects are."""
    fraction: float = 1.0
    """Of the cases that were run; those of a smaller fraction are among those of a larger one."""
    seed: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    subjects: dict[str, int] = field(default_factory=dict)
    why: list[Reason] = field(default_factory=list)
    not_run: str = ""
    """Why nothing was run."""

    @property
    def cases(self) -> int:
        """How many there were to which an answer exists."""
        return sum(count for outcome, count in self.counts.items() if outcome != "inapplicable")

    @property
    def equal(self) -> int:
        """How many of them are, gathered or not."""
        return self.counts.get("equal", 0) + self.counts.get("gathered", 0)

    def bad(self, worst: Sequence[Outcome]) -> Counter[str]:
        """In how many cases each subject came out as one of these."""
        found: Counter[str] = Counter()
        for reason in self.why:
            if reason.outcome in worst:
                found.update(reason.subjects)
        return found

    def save(self, folder: Path = RECORDED) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{self.suite}.json.part"  # others read the folder meanwhile
        unfinished.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        unfinished.replace(folder / f"{self.suite}.json")


def load(path: Path) -> Result:
    """The result that a file has."""
    found = json.loads(path.read_text())
    return Result(**{**found, "why": [Reason(**reason) for reason in found["why"]]})


def recorded(folder: Path = RECORDED) -> dict[str, Result]:
    """The results in a folder, by suite."""
    return {path.stem: load(path) for path in sorted(folder.glob("*.json"))}


def summarised(result: Result, findings: Iterable[Finding], silent: int = 0) -> Result:
    """The result with what was found; `silent` more subjects had no case that applies."""
    findings = list(findings)
    by_subject: dict[str, list[Finding]] = defaultdict(list)
    reasons: dict[tuple[Outcome, str], Counter[str]] = defaultdict(Counter)
    for finding in findings:
        by_subject[finding.operator].append(finding)
        if finding.outcome in IMPERFECT:
            reasons[finding.outcome, finding.text.partition("\n")[0]][finding.operator] += 1
    result.counts = dict(Counter(finding.outcome for finding in findings))
    subjects = Counter(outcome_of_all(own) for own in by_subject.values())
    subjects["inapplicable"] += silent
    result.subjects = {outcome: count for outcome, count in subjects.items() if count}
    order = sorted(reasons, key=lambda key: (IMPERFECT.index(key[0]), -sum(reasons[key].values()), key[1]))
    result.why = [Reason(*key, dict(sorted(reasons[key].items()))) for key in order]
    return result


def regressions(new: Result, page: Result | None) -> list[str]:
    """What is worse than on the page, in words: every wrong subject that the page does not name, and more bad cases of a
    subject than on the page, unless the new run had other cases than the page's."""
    if new.not_run:
        return []
    found = []
    before, now = (page.bad(["wrong"]) if page else Counter()), new.bad(["wrong"])
    found += [f"{new.suite}: {subject} is wrong in {now[subject]} cases" for subject in now if subject not in before]
    if page is None or page.not_run or new.seed != page.seed or new.fraction > page.fraction:
        return found
    for i, outcome in enumerate(IMPERFECT):
        before, now = page.bad(IMPERFECT[: i + 1]), new.bad(IMPERFECT[: i + 1])
        worse = [subject for subject in now if now[subject] > before[subject]]
        words = f"{outcome}{' or worse' if i else ''}"
        found += [
            f"{new.suite}: {each} is {words} in {now[each]} cases, on the page in {before[each]}" for each in worse
        ]
    return list(dict.fromkeys(found))
