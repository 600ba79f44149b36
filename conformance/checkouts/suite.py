"""A library's own pytest, with `import library` leading to Gridwise, and what comes of each of its tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from gridwise import errors

from ..findings import Finding
from ..results import Result, summarised

OURS = tuple(name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception))
PATIENCE = 1500.0


@dataclass(frozen=True)
class Suite:
    """Where a library's tests are."""

    library: str
    tests: str
    """The folder of them, in its repository."""
    workers: int = 1
    """Under mpiexec, if there are several."""

    @property
    def variable(self) -> str:
        """Of the environment, with the path of a checkout."""
        return f"CONFORMANCE_{self.library.upper()}"

    def run(self, fraction: float, seed: int, kept: Path) -> Result:
        """The suite, for conformance.run; always all of it."""
        where = os.environ.get(self.variable, "")
        about = (
            f"{self.library}'s own tests, as they stand in its repository, with `import {self.library}` leading to Gridwise "
            f"(`python -m gridwise_compat -m pytest`{f', on {self.workers} workers' if self.workers > 1 else ''}). Equal: the "
            "test passes; refused: it ends with an error of Gridwise's own; tests that skip themselves are left out."
        )
        result = Result(f"checkouts.{self.library}", f"{self.library}'s own tests", "-", about, unit="test files")
        if not where:
            result.not_run = f"no checkout ({self.variable})"
            return result
        result.version = version_of(Path(where))
        return summarised(result, self.findings(Path(where)))

    def findings(self, checkout: Path) -> list[Finding]:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            command = [sys.executable, "-m", "gridwise_compat", "-m", "pytest", str(checkout / self.tests)]
            command += ["-q", "-p", "no:cacheprovider", "-o", "addopts=", f"--rootdir={checkout}"]
            if self.workers > 1:  # every worker sees the same tests; the first one's report is read
                told = f"--junitxml={folder}/report$(test ${{PMI_RANK:-0}} = 0 || echo .$PMI_RANK).xml"
                command = ["mpiexec", "-n", str(self.workers), "sh", "-c", f'exec "$@" "{told}"', "sh", *command]
            else:
                command.append(f"--junitxml={report}")
            done = subprocess.run(command, timeout=PATIENCE, capture_output=True, text=True, cwd=folder)
            if not report.exists():
                last = (done.stderr or done.stdout).strip().splitlines()[-1:]
                raise RuntimeError(f"pytest of {self.library} wrote no report: {''.join(last)}")
            return list(told_by(report))


def told_by(report: Path) -> Iterator[Finding]:
    """What a report of pytest says of each test."""
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        subject = case.get("classname", "").split(".Test")[0].rpartition(".")[2]
        name = f"{case.get('classname')}.{case.get('name')}"
        bad = next((each for each in case if each.tag in ("failure", "error")), None)
        if any(each.tag == "skipped" for each in case):
            yield Finding(name, subject, "inapplicable")
        elif bad is None:
            yield Finding(name, subject, "equal")
        else:
            message = (bad.get("message") or "").partition("\n")[0][:200]
            is_ours = re.match(rf"(\w+\.)*({'|'.join(OURS)})\b", message)
            yield Finding(name, subject, "refused" if is_ours else "wrong", text=message)


def version_of(checkout: Path) -> str:
    """Its commit, where git knows it."""
    asked = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "sources without a history"
