"""Check the links inside the documents: do the files and the headings that they point to exist?

    python tools/check_links.py

Prints broken links, and fails if there are any. Links to other sites are not followed: nothing is fetched.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks" / "README.md")
LINK = re.compile(
    r"\]\(([^)\s]+)\)|\{download\}`[^`]*<([^>]+)>`|^```\{(?:include|literalinclude)\} (\S+)$", re.MULTILINE
)
FENCED = re.compile(r"^```(?!\{(?:include|literalinclude)\}).*?^```$", re.DOTALL | re.MULTILINE)
MADE = {"docs/api/index.rst"}
"""Pages that the build of the site generates."""


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, spelt as GitHub and the site spell them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower().strip())
        found.add(plain.replace(" ", "-"))
    return found


def problems(page: Path) -> list[str]:
    """The broken links of a page, one line each."""
    found = []
    for parts in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        link = next(filter(None, parts))
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        where = f"{page.relative_to(ROOT)}: {link}"
        if target.is_relative_to(ROOT) and target.relative_to(ROOT).as_posix() in MADE:
            continue
        if not target.exists():
            found.append(f"{where}: there is no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            found.append(f"{where}: it has no such heading")
    return found


if __name__ == "__main__":
    lines = [line for page in PAGES for line in problems(page)]
    print("\n".join(lines) or f"links of {len(PAGES)} pages lead somewhere")
    sys.exit(1 if lines else 0)
