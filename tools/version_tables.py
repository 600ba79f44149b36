"""Write the tables of supported versions into README.md and docs/versions.md, from the runs that versions.py lists.

python tools/version_tables.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "versions.md")
MARKS = re.compile(r"(<!-- versions -->\n).*?(<!-- end of versions -->)", re.DOTALL)
OTHERS = ("3.11", "3.12", "3.13", "3.14")
"""The versions of Python that people have."""

sys.path.insert(0, str(ROOT / "src"))

from gridwise.torch_internals.versions import RUNS, TESTED  # noqa: E402


def table() -> str:
    """Python by torch: the day of the tests, bold where all of them have passed."""
    lines = [f"| | torch {' | '.join(TESTED)} |", "|---" * (len(TESTED) + 1) + "|"]
    tried = {run.python for run in RUNS}
    tested = [python for python in OTHERS if python in tried]
    never = [python for python in OTHERS if python not in tried]
    lines += [f"| Python {python} | {' | '.join(cell(python, torch) for torch in TESTED)} |" for python in tested]
    if never:
        lines.append(f"| Python {', '.join(never)} | {' | '.join('not tested' for _ in TESTED)} |")
    return "\n".join(lines) + "\n"


def cell(python: str, torch: str) -> str:
    runs = [run for run in RUNS if (run.python, run.torch) == (python, torch)]
    if not runs:
        return "not tested"
    last = max(runs, key=lambda run: (run.tests == "all", run.day))
    return {"all": f"**{last.day}**", "in part": f"in part, {last.day}"}.get(last.tests, last.day)


def with_table(page: str) -> str:
    return MARKS.sub(lambda marks: marks[1] + table() + marks[2], page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
