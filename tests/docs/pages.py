"""The code on the pages of docs/: what a test runs of each, in the order in which a reader meets it.

    ```python             is run, block after block, in one namespace for each page
    <!-- setup ... -->    is run too, and not shown: what the page takes for granted
    <!-- workers: 1 -->   says on how many workers; else on four

Blocks in other languages are for people: commands, output, differences.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WORKERS = 4

RUN = re.compile(r"^```python\n(.*?)^```$|^<!-- setup\n(.*?)^-->$", re.DOTALL | re.MULTILINE)


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def pages_with_code() -> dict[str, int]:
    """The pages that have code to run, and on how many workers."""
    found = {}
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if "```python\n" in text:
            said = re.search(r"<!-- workers: (\d+) -->", text)
            found[path.stem] = int(said[1]) if said else WORKERS
    return found


def program_of(page: str) -> str:
    """The code of a page as one program, each line where it stands on the page, so that a traceback tells the line."""
    text = text_of(page)
    lines = [""] * (text.count("\n") + 1)
    for block in RUN.finditer(text):
        which = 1 if block[1] is not None else 2
        first = text.count("\n", 0, block.start(which))
        for at, line in enumerate(block[which].splitlines()):
            lines[first + at] = line
    return "\n".join(lines)


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a page in a language, without their fences."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)


def files(page: str) -> dict[str, str]:
    """The files that a page asks its reader to save, by the names in their captions."""
    pattern = r"^```\{code-block\} python\n:caption: ([\w.]+)\n\n(.*?)^```$"
    return dict(re.findall(pattern, text_of(page), re.DOTALL | re.MULTILINE))
