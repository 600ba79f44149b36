"""What came of each case: kept in a file as soon as it is there, and counted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch

Outcome = Literal["equal", "gathered", "refused", "wrong", "inapplicable"]
"""gathered: equal, but a worker receives all of a tensor that was cut, in dims that the operator does not combine;
inapplicable: torch itself refuses the call."""


@dataclass
class Finding:
    """What came of one case."""

    case: str
    operator: str
    outcome: Outcome
    error: float = 0.0
    """The largest difference, relative to the largest number of each tensor, or to 1."""
    text: str = ""
    """Why it is refused, what is gathered, or what differs."""
    torch: str = field(default=torch.__version__)


class Kept:
    """Findings in a file of lines of JSON; a run that was interrupted goes on where it stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, Finding] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                finding = Finding(**json.loads(line))
                if finding.torch == torch.__version__:
                    self.found[finding.case] = finding

    def add(self, findings: Iterable[Finding]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            for finding in findings:
                self.found[finding.case] = finding
                file.write(json.dumps(asdict(finding)) + "\n")


def outcome_of_all(findings: Iterable[Finding]) -> Outcome:
    """The worst outcome of an operator's cases; "equal" only if all that apply are."""
    outcomes = {finding.outcome for finding in findings}
    order: list[Outcome] = ["wrong", "refused", "gathered", "equal"]
    return next((each for each in order if each in outcomes), "inapplicable")
