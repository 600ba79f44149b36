"""What an installed Gridwise imports and promises."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gridwise
from gridwise.torch_internals.versions import PYTHONS, TESTED, is_tested

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def imported_by(code: str) -> set[str]:
    """The packages that are loaded after `code` has run in a new process."""
    script = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_pytest_plugin_imports_no_torch() -> None:
    (plugin,) = PROJECT["entry-points"]["pytest11"].values()
    loaded = imported_by(f"import {plugin}")
    assert plugin in loaded
    assert not loaded & {"torch", "numpy", "gridwise"}


def test_rich_and_typer_are_left_to_pictures_and_the_command_line() -> None:
    loaded = imported_by(
        "import gridwise, gridwise.tagi, gridwise.checkpoint, gridwise.deferred_init, gridwise.testing"
    )
    assert "gridwise" in loaded
    assert not loaded & {"rich", "typer", "click", "matplotlib"}


def lower_bounds() -> dict[str, str]:
    """Of what the package needs and of what its users can ask for; tools for work on it may be new."""
    extras = PROJECT["optional-dependencies"]
    groups = [PROJECT["dependencies"], *(extras[name] for name in ("mpi", "viz", "examples", "sklearn", "data"))]
    return dict(requirement.split(">=") for group in groups for requirement in group)


@pytest.mark.parametrize(("name", "bound"), lower_bounds().items())
def test_the_oldest_constraints_are_the_bounds_that_are_promised(name: str, bound: str) -> None:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints-oldest.txt").read_text(), flags=re.MULTILINE))
    assert f"{pins[name]}.".startswith(f"{bound}."), f"{name}: promised from {bound} on, tested with {pins[name]}"


def test_the_range_of_torch_is_the_same_everywhere() -> None:
    oldest, newest = (version.rpartition(".")[0] for version in (TESTED[0], TESTED[-1]))
    assert f"torch>={oldest}" in PROJECT["dependencies"]
    assert f"torch {oldest} to {newest}" in (ROOT / "README.md").read_text()
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert pinned is not None
    assert is_tested(pinned[1])


def test_the_versions_of_python_are_the_same_everywhere() -> None:
    prefix = "Programming Language :: Python :: 3."
    said = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if name.startswith(prefix)]
    assert said == list(PYTHONS)
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert f"Python {PYTHONS[0]}" in (ROOT / "README.md").read_text()
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tool["mypy"]["python_version"] == PYTHONS[0]
    assert tool["ruff"]["target-version"] == f"py{PYTHONS[0].replace('.', '')}"


def test_changes_name_the_version_at_hand_and_the_one_to_cite() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    number, date = re.findall(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", changes, flags=re.MULTILINE)[0]
    version = gridwise.__version__
    assert version == number or f"## Unreleased ({version.split('.dev')[0]})" in changes
    cited = dict(re.findall(r"^([\w-]+): (\S+)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE))
    assert cited["version"] == version
    assert cited.get("date-released") == (date if version == number else None)


def test_the_summary_speaks_of_what_users_have() -> None:
    summary = PROJECT["description"]
    assert "PyTorch" in summary
    assert "too large for one device" in summary
    assert len(summary) < 160
    assert "PyTorch models on images, volumes and fields that are too large" in (ROOT / "CITATION.cff").read_text()
