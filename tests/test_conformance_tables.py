"""A handful of the facts of other libraries' tests; `make conformance` runs them all."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from conformance import dist_conv, dtensor, facts, formats, shard_tensor
from conformance.checkouts.suite import Suite, told_by
from conformance.tables import claims
from conformance.tables import dist_conv as dist_conv_tables
from conformance.tables import shard_tensor as shard_tensor_tables
from conformance.tables.calls import MOST, module_of, smaller
from conformance.tables.table import Case, cases

TABLES = {"shard_tensor": shard_tensor.TABLES, "dist_conv": dist_conv.TABLES, "dtensor": dtensor.TABLES}
TABLES["claims"] = claims.TABLES


def numbers(case: Case) -> int:
    shape = smaller(case.shapes[0])
    return 2 * MOST if case.table.call == "GroupNorm" else len(shape) * max(shape) ** (len(shape) - 2)


@pytest.mark.parametrize("library", TABLES)
def test_a_handful_of_cases(library: str) -> None:
    small = [case for case in cases(TABLES[library]) if numbers(case) < 2000]
    found = [facts.found_for(case) for case in random.Random(3).sample(small, 5)]
    assert [each for each in found if each.outcome not in ("equal", "gathered")] == []


def test_gradients_of_gradients() -> None:
    twice = [case for case in cases(dist_conv_tables.TWICE) if case.table.call == "Conv1d"]
    assert [facts.found_for(case).outcome for case in random.Random(3).sample(twice, 2)] == ["equal", "equal"]


@pytest.mark.parametrize("library", TABLES)
def test_names_are_unique_and_calls_exist(library: str) -> None:
    names = [case.name for case in cases(TABLES[library])]
    assert len(set(names)) == len(names)
    for table in {table.call: table for table in TABLES[library]}.values():
        module_of(next(cases((table,))))


def test_what_shard_tensor_refuses_is_counted() -> None:
    assert sum(case.refused_there for case in cases(shard_tensor_tables.POOLING)) == 80
    assert len(list(cases(shard_tensor_tables.POOLING))) == 160


def test_a_handful_of_files_of_other_programs() -> None:
    chosen = random.Random(3).sample(list(formats.cases()), 12)
    assert [finding for case in chosen if (finding := formats.finding_of(*case)).outcome != "equal"] == []


def test_a_report_is_read(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(
        "<testsuites><testsuite>"
        '<testcase classname="tests.test_fake" name="a"/>'
        '<testcase classname="tests.test_fake.TestFake" name="b"><skipped/></testcase>'
        '<testcase classname="tests.test_fake" name="c"><failure message="assert 1 == 2&#10;more"/></testcase>'
        '<testcase classname="tests.test_fake" name="d"><error message="gridwise.errors.PartitionError: no"/></testcase>'
        "</testsuite></testsuites>"
    )
    found = list(told_by(tmp_path / "report.xml"))
    assert [(each.operator, each.outcome) for each in found] == [
        ("test_fake", "equal"), ("test_fake", "inapplicable"), ("test_fake", "wrong"), ("test_fake", "refused"),
    ]  # fmt: skip
    assert found[2].text == "assert 1 == 2"


@pytest.mark.soak
def test_a_checkout_is_run_under_the_old_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Suite("torchdistx", "tests")
    assert suite.run(1.0, 0, tmp_path).not_run == "no checkout (CONFORMANCE_TORCHDISTX)"
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_names.py").write_text(
        "import pytest\n"
        "from torchdistx.fake import fake_mode\n"
        "def test_here(): assert 'gridwise' in fake_mode.__module__\n"
        "def test_wrong(): assert not fake_mode\n"
        "def test_refused():\n"
        "    from gridwise.errors import PartitionError\n"
        "    raise PartitionError('no')\n"
        "def test_skipped(): pytest.skip()\n"
    )
    monkeypatch.setenv("CONFORMANCE_TORCHDISTX", str(tmp_path))
    result = suite.run(1.0, 0, tmp_path)
    assert result.counts == {"equal": 1, "wrong": 1, "refused": 1, "inapplicable": 1}
    assert result.subjects == {"wrong": 1}
