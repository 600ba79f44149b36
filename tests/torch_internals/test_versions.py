"""Releases of minor versions that were tested are known; anything else is checked before use."""

from __future__ import annotations

from datetime import date

import pytest
import torch

from gridwise.torch_internals.versions import PYTHONS, RUNS, TESTED, VersionPair, is_tested, this_version


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("2.13.0", True),
        ("2.13.0+cpu", True),
        ("2.13.7+cu130", True),
        ("2.1.0", False),
        ("2.999.0", False),
        ("2.15.0.dev20261001+cpu", False),
        ("2.15.0a0+gitabc", False),
        ("2.15.0rc1", False),
    ],
)
def test_releases_of_tested_minor_versions_are_known(version: str, tested: bool) -> None:
    assert is_tested(version) is tested


def test_the_table_is_in_order() -> None:
    numbers = [tuple(map(int, version.split("."))) for version in TESTED]
    assert numbers == sorted(numbers)
    assert all(map(is_tested, TESTED))
    assert this_version() == torch.__version__


def test_pairs_say_what_was_tested_and_on_which_day() -> None:
    assert all(isinstance(run, VersionPair) and run.tests in ("all", "internals", "in part") for run in RUNS)
    assert all(date(2026, 1, 1) <= date.fromisoformat(run.day) for run in RUNS)
    passed = [run for run in RUNS if run.tests != "in part"]
    assert {run.torch for run in passed} == set(TESTED)
    assert {run.python for run in passed} == set(PYTHONS)
    assert len({(run.python, run.torch) for run in RUNS}) == len(RUNS)
