"""The pictures of the figures: drawn from the tables on the page, and from what stands there now."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks" / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")

sys.path.insert(0, str(PAGE.parent))
try:
    from plots import choice, drawing, page, tables
finally:
    sys.path.remove(str(PAGE.parent))


def figures(plot: choice.Plot) -> str:
    found = page.figures_of(TEXT, plot.benchmark)
    assert found is not None, plot.benchmark
    return found


def test_the_pictures_show_the_figures_that_are_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    copied = shutil.copy(PAGE, tmp_path / "benchmarks")
    drawn = page.draw(Path(copied))
    assert Path(copied).read_text(encoding="utf-8") == TEXT, "python benchmarks/run.py --draw"
    kept = {path.name: path.read_text() for path in (ROOT / "docs" / "pictures").glob("figures_*.svg")}
    assert {path.name: path.read_text() for path in drawn} == kept, "python benchmarks/run.py --draw"
    assert len(drawn) == len(choice.PLOTS)


@pytest.mark.parametrize("plot", choice.PLOTS, ids=lambda plot: plot.file)
def test_a_picture_has_every_row_and_says_its_numbers(plot: choice.Plot) -> None:
    rows = plot.read(figures(plot))
    assert len(rows) > 2
    text = drawing.picture(plot, rows)
    assert text.count("<circle") == sum(len(row.times) for row in rows) + len(rows[0].times)
    for row in rows:
        assert all(times > 0 for times in row.times.values())
        assert row.shown in text
        assert len(row.label) * drawing.LETTER < drawing.WIDTH / 2


@pytest.mark.parametrize(
    ("benchmark", "column"), [("layers", "ratio"), ("layers_norm", "ratio"), ("scaling", "ratio"), ("gpu", "ratio")]
)
def test_what_is_drawn_is_the_ratio_that_was_measured(benchmark: str, column: str) -> None:
    (plot,) = (plot for plot in choice.PLOTS if plot.benchmark == benchmark)
    rows, (table, *_) = plot.read(figures(plot)), tables.tables_in(figures(plot))
    for row, cells in zip(rows, table.rows, strict=True):
        numbers = [float(text) for text in re.findall(r"[\d.]+", row.shown)]
        rounding = sum(0.5 / 10 ** len(f"{number:g}".partition(".")[2] or "0") / number for number in numbers)
        assert row.times["ours"] == pytest.approx(float(cells[column]), rel=0.02 + rounding)


BOXES = """
┏━━━━━━┳━━━━━━━━━┓
┃ what ┃ ours ms ┃
┡━━━━━━╇━━━━━━━━━┩
│ one  │ 1.50    │
│ more │         │
│ two  │ 2,000.0 │
└──────┴─────────┘

| a | b | b |
|---|---|---|
| x | 1 | 2 |
"""


def test_tables_are_read() -> None:
    rich, markdown = tables.tables_in(BOXES)
    assert rich.rows == ({"what": "one more", "ours ms": "1.50"}, {"what": "two", "ours ms": "2,000.0"})
    assert [tables.number(row["ours ms"]) for row in rich.rows] == [1.5, 2000.0]
    assert markdown.rows == ({"a": "x", "b": "1", "b 2": "2"},)
    ((title, columns),) = tables.columns_in(
        "of two\n            save s  x raw\nraw          1.0   2.0\nours         3.0   4.0\n"
    )
    assert title == "of two"
    assert columns.rows[1] == {"": "ours", "save s": "3.0", "x raw": "4.0"}
