"""What coding assistants are told is true: names resolve, code runs, messages are quoted as they are, links lead to pages."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from pages import DOCS, ROOT

import gridwise
from gridwise.testing import workers

FOLDER = DOCS / "assistants"
SKILL = (FOLDER / "gridwise" / "SKILL.md").read_text(encoding="utf-8")
INDEX = (FOLDER / "llms.txt").read_text(encoding="utf-8")
CODE = "\n".join(re.findall(r"^```python\n(.*?)^```$", SKILL, re.DOTALL | re.MULTILINE))
INVENTED = SKILL.partition("## Do not invent")[2]


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bgridwise(?:\.\w+)+", text))


def resolves(name: str) -> bool:
    """Whether it is there; of an adapter, whose library may be missing here, whether its module is."""
    if name.startswith("gridwise.integrations."):
        return find_spec(name) is not None
    found: object = gridwise
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("name", sorted(names_in(SKILL.replace(INVENTED, "")) | names_in(INDEX)))
def test_every_name_resolves(name: str) -> None:
    assert resolves(name)


def test_what_it_says_is_not_there_is_not_there() -> None:
    invented = names_in(INVENTED)
    assert len(invented) == 3
    assert not any(map(resolves, invented))


@workers(4, transports=("gloo",))
def test_the_code_runs(tmp_path: Path) -> None:
    os.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(CODE, "SKILL.md", "exec"), names)
    assert names["result"].shape == names["image"].shape
    assert (tmp_path / "run").exists()


def test_there_are_ten_rules() -> None:
    rules = SKILL.partition("## Ten rules")[2].partition("\n## ")[0]
    assert re.findall(r"^(\d+)\. \*\*", rules, re.MULTILINE) == [str(i + 1) for i in range(10)]


def test_messages_are_those_of_the_package() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "gridwise").rglob("*.py"))
    table = SKILL.partition("## Common errors")[2].partition("\n## ")[0]
    quoted = [
        message for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for message in re.findall("`(.*?)`", row)
    ]
    assert len(quoted) > 6
    assert [message for message in quoted if message not in sources] == []


def test_links_lead_to_pages() -> None:
    links = re.findall(r"\]\(([^)]+)\)", INDEX)
    assert len(links) > 15
    for link in links:
        page = DOCS / link.replace(".html", ".md")  # of which the site makes the other
        assert page.exists() or (FOLDER / link).exists(), link


def test_it_begins_as_such_files_do() -> None:
    title, _, summary = INDEX.partition("\n\n")
    assert title == "# Gridwise"
    assert summary.startswith("> ")
    front = re.match(r"---\nname: (\w+)\ndescription: (.+)\n---\n", SKILL)
    assert front is not None
    assert front[1] == "gridwise"
    assert len(front[2]) < 1024
