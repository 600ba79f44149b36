"""The plugin as a user meets it: a test file of their own, run by pytest in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = """
import os, time
from pathlib import Path

import pytest
import torch
from gridwise.comm.launching import find
from gridwise.testing import workers


def helper(x):
    return x + 1


@pytest.fixture
def number():
    return 41


@workers(1, 2, transports=["gloo"])
@pytest.mark.parametrize("factor", [1, 2])
def test_passes(factor, number, tmp_path):
    transport = find.current()
    assert helper(number) * factor == 42 * factor
    assert isinstance(tmp_path, Path)
    total = transport.all_sum(torch.ones(1), transport.everyone).item()
    assert total == transport.size
    torch.rand(find.current().rank + 1)  # the next test starts from the seed all the same


@workers(2, transports=["gloo"])
def test_seed_is_set():
    assert torch.initial_seed() == 0


@workers(2, transports=["gloo"])
@pytest.mark.parametrize("turn", [0, 1])
def test_patches_end_with_the_test(turn, monkeypatch):
    assert os.sep != "patched"
    monkeypatch.setattr(os, "sep", "patched")


@workers(2, transports=["gloo"])
class TestClass:
    size = 2

    def test_method(self):
        assert find.current().size == self.size


@workers(2, transports=["gloo"])
def test_fails_on_one_worker():
    value = [1, 2, find.current().rank]
    assert value == [1, 2, 0]


@workers(2, transports=["gloo"])
def test_skips():
    pytest.skip("not today")


@workers(2, transports=["gloo"])
def test_expects_an_error_that_does_not_come():
    with pytest.raises(ValueError):
        pass


@workers(2, transports=["gloo"])
@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
def test_expected_failure():
    1 / 0


@workers(2, transports=["gloo"])
def test_hangs():
    if find.current().rank == 0:
        find.current().barrier()
    else:
        time.sleep(77)


@workers(2, transports=["gloo"])
def test_after_the_hang():
    find.current().barrier()


def test_plain():
    assert True
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest prints for the file above."""
    folder = tmp_path_factory.mktemp("users")
    (folder / "test_mine.py").write_text(FILE)
    (folder / "pytest.ini").write_text("[pytest]\ngridwise_timeout = 4\nfilterwarnings = error\n")
    already = "gridwise" in {entry.name for entry in _entry_points()}
    plugin = [] if already else ["-p", "gridwise.testing.pytest_plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-rA", "-p", "no:cacheprovider", *plugin, str(folder)],
        capture_output=True,
        text=True,
        timeout=200,
        env={
            **os.environ,
            "COLUMNS": "200",
            "PYTHONPATH": os.pathsep.join([str(_source()), *filter(None, [os.environ.get("PYTHONPATH")])]),
        },
    )
    return done.stdout + done.stderr


def _entry_points() -> object:
    from importlib.metadata import entry_points

    return entry_points(group="pytest11")


def _source() -> Path:
    import gridwise

    return Path(str(gridwise.__file__)).parents[1]


def test_counts_transports_and_parameters_make_the_names(report: str) -> None:
    for name in ("gloo-1-1", "gloo-1-2", "gloo-2-1", "gloo-2-2"):
        assert f"test_passes[{name}] PASSED" in report
    assert "test_method[gloo-2] PASSED" in report
    assert "test_seed_is_set[gloo-2] PASSED" in report


def test_what_a_test_patches_on_workers_is_restored(report: str) -> None:
    assert "test_patches_end_with_the_test[gloo-2-0] PASSED" in report
    assert "test_patches_end_with_the_test[gloo-2-1] PASSED" in report


def test_a_failed_assertion_says_what_and_where(report: str) -> None:
    assert "test_fails_on_one_worker[gloo-2] FAILED" in report
    assert "raised on worker 1 of 2" in report
    assert "assert value == [1, 2, 0]" in report
    assert "assert [1, 2, 1] == [1, 2, 0]" in report


def test_outcomes_are_passed_on(report: str) -> None:
    assert "test_skips[gloo-2] SKIPPED (not today)" in report
    assert "test_expected_failure[gloo-2] XFAIL" in report
    assert "test_expects_an_error_that_does_not_come[gloo-2] FAILED" in report
    assert "DID NOT RAISE" in report


def test_a_hang_is_a_failure_with_stacks_and_the_next_test_runs(report: str) -> None:
    assert "test_hangs[gloo-2] FAILED" in report
    assert "time.sleep(77)" in report
    assert "worker 0 waits for a barrier" in report
    assert "test_after_the_hang[gloo-2] PASSED" in report
    assert "test_plain PASSED" in report
