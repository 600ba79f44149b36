"""The README's code runs as it stands, and its promises about files hold."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest
import torch

import gridwise
from gridwise.testing import workers
from gridwise.torch_internals.versions import RUNS, TESTED

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_code_starts_by_line_25():
    before = README[: README.index("```diff")]
    assert before.count("\n") < 25


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def sides() -> tuple[str, str]:
    """The plain loop and the other one, out of the difference."""
    (text,) = blocks("diff")
    lines = [(line[:1], line[1:]) for line in text.splitlines()]
    plain, ours = ("\n".join(line for mark, line in lines if mark in ("", " ", kept)) for kept in "-+")
    return plain, ours


def printed(program: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), torch.random.fork_rng():
        exec(compile(program, "README.md", "exec"), {"__name__": "__main__"})
    return out.getvalue()


@workers(4, transports=("gloo",))
def test_both_sides_of_the_loop_print_what_the_readme_shows():
    plain, ours = sides()
    (shown,) = blocks("text")
    said = printed(ours)
    assert said == (printed_near(shown, said) if gridwise.world().rank == 0 else "")
    if gridwise.world().rank == 0:
        assert printed_near(shown, printed(plain))


def printed_near(shown: str, said: str) -> str:
    """`said`, if its words are those shown, and its numbers too, but for a rounding of the last digit."""
    both = [re.split(r"(\d\.\d{4})", text) for text in (shown, said)]
    assert both[0][::2] == both[1][::2]
    assert len(both[0]) > 8
    assert all(abs(float(a) - float(b)) < 2.5e-4 for a, b in zip(*(text[1::2] for text in both), strict=True))
    return said


def test_the_code_for_one_device_runs(tmp_path, monkeypatch):
    (code,) = blocks("python")
    model = torch.nn.Conv3d(1, 1, 3, padding=1)
    names = {"gridwise": gridwise, "model": model, "volume": torch.rand(1, 1, 8, 8, 8)}
    with torch.no_grad():
        exec(code, names)
        assert torch.allclose(names["result"], model(names["volume"]), atol=1e-6)


def test_it_is_short_and_sends_nobody_to_an_index():
    assert README.count("\n") <= 110
    assert "pip install gridwise" not in README
    for page in (ROOT / "docs").glob("*.md"):
        assert not re.search(r"pip install '?gridwise", page.read_text(encoding="utf-8")), page.name


@pytest.mark.parametrize("page", ["README.md", "docs/versions.md"])
def test_the_versions_are_those_that_were_tested(page):
    tool = runpy.run_path(str(ROOT / "tools" / "version_tables.py"))
    text = (ROOT / page).read_text(encoding="utf-8")
    assert tool["with_table"](text) == text, "python tools/version_tables.py"
    (shown,) = re.findall(r"^\| \| torch (.*) \|$", text, re.MULTILINE)
    assert shown.split(" | ") == list(TESTED)
    for run in RUNS:
        (cells,) = re.findall(rf"^\| Python {re.escape(run.python)} \| (.*) \|$", text, re.MULTILINE)
        assert run.day in cells.split(" | ")[TESTED.index(run.torch)]


def test_it_says_where_it_was_run():
    assert "nccl between several devices: never run" in README


def test_links_lead_somewhere(tmp_path):
    """As `make check` looks at them, with headings."""
    tool = runpy.run_path(str(ROOT / "tools" / "check_links.py"))
    assert [line for page in tool["PAGES"] for line in tool["problems"](page)] == []


def test_a_broken_link_is_noticed(tmp_path):
    tool = runpy.run_path(str(ROOT / "tools" / "check_links.py"))
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n[here](#a-page), [there](nowhere.md), [below](#no-heading)\n", encoding="utf-8")
    tool["problems"].__globals__["ROOT"] = tmp_path
    assert [line.split(": ", 2)[2] for line in tool["problems"](page)] == [
        "there is no such file",
        "it has no such heading",
    ]


def test_what_the_table_for_users_of_distdl_names_is_there():
    table = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8").split("## Coming from DistDL")[1]
    right = " ".join(line.split("|")[2] for line in table.splitlines() if line.startswith("| `"))
    for name in re.findall(r"`(Distributed\w+|Repartition)", right):
        assert hasattr(gridwise.nn, name), name
    left = " ".join(line.split("|")[1] for line in table.splitlines() if line.endswith("the same |"))
    for name in re.findall(r"`(\w+)`", left):
        assert hasattr(gridwise.nn, name) or hasattr(gridwise.Partition, name), name
    for name in ("DistributedTranspose", "Interpolate", "PadNd", "UnpadNd"):
        assert not hasattr(gridwise.nn, name), name
