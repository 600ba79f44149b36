"""The pictures of a page of figures: drawn again from its tables, each at the head of its section's figures."""

from __future__ import annotations

import re
from pathlib import Path

from .choice import PLOTS
from .drawing import picture

PICTURES = "../docs/pictures"
"""Where the pictures are, from the page."""


def draw(page: Path) -> list[Path]:
    """Draw all pictures of the page, put them in their places, and return their files."""
    text = page.read_text(encoding="utf-8")
    folder = (page.parent / PICTURES).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in dict.fromkeys(plot.benchmark for plot in PLOTS):
        figures = figures_of(text, name)
        if figures is None:
            continue
        links = []
        for plot in (plot for plot in PLOTS if plot.benchmark == name):
            (folder / plot.file).write_text(picture(plot, plot.read(figures)), encoding="utf-8")
            files.append(folder / plot.file)
            links.append(f"![{plot.title}]({PICTURES}/{plot.file})\n")
        start = f"<!-- figures of {name} -->\n"
        without = re.sub(rf"\A(!\[[^\]]*\]\({re.escape(PICTURES)}/figures_[^)]*\)\n|\n)*", "", figures)
        text = text.replace(start + figures, start + "".join(links) + "\n" + without)
    page.write_text(text, encoding="utf-8")
    return files


def figures_of(text: str, name: str) -> str | None:
    """What stands between the marks of a benchmark."""
    found = re.search(rf"<!-- figures of {name} -->\n(.*?)<!-- end of {name} -->", text, re.DOTALL)
    return found and found[1]
