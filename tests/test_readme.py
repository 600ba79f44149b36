"""The README's code runs as it stands, and its promises about files hold."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import gridwise

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_code_starts_by_line_25():
    before = README[: README.index("```python")]
    assert before.count("\n") < 25


def test_the_readme_example_runs_without_a_warning(tmp_path, capfd):
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code.group(1), encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")
    output = capfd.readouterr()
    assert "Warning" not in output.err
    found = re.findall(r"\((\d\.\d+), \(1, 3, (\d+), (\d+)\)\)", output.out)
    assert [(int(height), int(width)) for _, height, width in found] == [(32, 33), (32, 32), (31, 33), (31, 32)]
    assert len({loss for loss, _, _ in found}) == 1, "one global loss, the same on every worker"


def test_it_is_one_screen_and_sends_nobody_to_an_index():
    assert README.count("\n") <= 62
    assert "pip install gridwise" not in README
    for page in (ROOT / "docs").glob("*.md"):
        assert not re.search(r"pip install '?gridwise", page.read_text(encoding="utf-8")), page.name


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
