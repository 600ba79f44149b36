"""docs/conformance.md is what conformance/results make of it, and what is worse than on it is noticed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conformance import run
from conformance.findings import Finding, Outcome
from conformance.page import PAGE, README, page, quoted
from conformance.results import Reason, Result, load, recorded, regressions, summarised


def found(*cases: tuple[str, Outcome]) -> list[Finding]:
    return [Finding(f"{name} {i}", name, outcome, text="why") for i, (name, outcome) in enumerate(cases)]


def result_of(*cases: tuple[str, Outcome], fraction: float = 1.0, seed: int = 0) -> Result:
    return summarised(Result("a", "A", "1", "About.", fraction=fraction, seed=seed), found(*cases))


def test_the_page_is_that_of_the_results() -> None:
    assert PAGE.read_text() == page(recorded().values()), "python -m conformance.page"


def test_the_readme_quotes_it() -> None:
    text = README.read_text()
    assert text == quoted(text, recorded()), "python -m conformance.page"
    with pytest.raises(ValueError, match="2 times"):
        quoted("1 of 2 cases, 1,000 of 2,000 cases", recorded())


def test_every_suite_is_on_the_page() -> None:
    assert set(recorded()) == set(run.SUITES)


def test_a_result_counts_cases_and_subjects(tmp_path: Path) -> None:
    result = result_of(
        ("add", "equal"), ("add", "refused"), ("add", "refused"), ("mul", "equal"), ("mul", "inapplicable")
    )
    assert (result.cases, result.counts["equal"]) == (4, 2)
    assert result.subjects == {"equal": 1, "refused": 1}
    assert result.why == [Reason("refused", "why", {"add": 2})]
    result.save(tmp_path)
    assert load(tmp_path / "a.json") == result
    assert "| A | 1 | all | 4 | 2 | 0 | 2 | 0 |" in page([result])
    assert "| 2 | why | `add` |" in page([result])


def test_what_is_worse_is_noticed() -> None:
    before = result_of(("add", "refused"), ("mul", "equal"), ("mul", "gathered"))
    assert regressions(before, before) == []
    assert regressions(result_of(("add", "equal"), ("mul", "gathered")), before) == []
    (line,) = regressions(result_of(("add", "refused"), ("mul", "refused")), before)
    assert line == "a: mul is refused or worse in 1 cases, on the page in 0"
    (line,) = regressions(result_of(("mul", "gathered"), ("mul", "gathered")), before)
    assert line == "a: mul is gathered or worse in 2 cases, on the page in 1"
    assert len(regressions(result_of(("add", "wrong")), before)) == 2


def test_a_larger_run_is_worse_only_if_something_is_wrong() -> None:
    before = result_of(("add", "refused"), ("mul", "wrong"), fraction=0.05)
    refused = (("add", "refused"),) * 3
    assert regressions(result_of(*refused), before) == []
    assert regressions(result_of(*refused, fraction=0.05, seed=1), before) == []
    assert regressions(result_of(*refused, fraction=0.05), before) != []
    assert regressions(result_of(("mul", "wrong"), ("mul", "wrong")), before) == []
    assert regressions(result_of(("add", "wrong")), before) == ["a: add is wrong in 1 cases"]
    assert regressions(result_of(("add", "wrong")), None) == ["a: add is wrong in 1 cases"]


def test_a_run_fails_and_leaves_the_page_if_it_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, written = tmp_path / "results", tmp_path / "page.md"
    result_of(("add", "equal")).save(folder)
    monkeypatch.setattr(run, "SUITES", ("a",))
    monkeypatch.setattr(run, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(run, "write", lambda: written.write_text(page(recorded(folder).values())))
    monkeypatch.setattr(run, "recorded", lambda: recorded(folder))
    monkeypatch.setattr(Result, "save", lambda self, save=Result.save: save(self, folder))

    def status(result: Result, *arguments: str) -> object:
        monkeypatch.setattr(run, "run_of", lambda suite: lambda *settings: result)
        monkeypatch.setattr(sys, "argv", ["run", *arguments])
        with pytest.raises(SystemExit) as ended:
            run.main()
        return bool(ended.value.code)

    assert status(result_of(("add", "refused")), "--write") is True
    assert "add is refused or worse" in capsys.readouterr().out
    assert not written.exists()
    assert status(result_of(("add", "equal"), ("mul", "equal")), "--write") is False
    assert "| 2 | 2 | 0 | 0 | 0 |" in written.read_text()
    assert status(result_of(("add", "refused")), "--write", "--accept") is True
    assert load(folder / "a.json").counts == {"refused": 1}
    assert status(Result("a", "A", "", "", not_run="no checkout"), "--write") is False
    assert load(folder / "a.json").counts == {"refused": 1}, "what was measured elsewhere stays"


def test_suites_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFORMANCE_DISTDL", "CONFORMANCE_PYTAGI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    suites = ("checkouts.distdl", "checkouts.pytagi")
    assert list(run.all_examined(suites, 2, 0.05, 0, False, False)) == [[], []]


def test_a_file_of_results_is_whole_at_any_time(tmp_path: Path) -> None:
    result_of(("add", "equal")).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
