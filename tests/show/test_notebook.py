"""What a notebook shows of grids, layouts, plans, models and checkpoints: pictures and tables, with names escaped."""

from __future__ import annotations

import io
import math
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
import torch

import gridwise
from gridwise import checkpoint
from gridwise.errors import PartitionError
from gridwise.grid import Grid, Layout
from gridwise.progress import ProgressBar, progress

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<script>alert('x')</script>"


def layout(shape: tuple[int, ...], extents: tuple[int, ...]) -> Layout:
    return Layout.balanced(Grid(tuple(range(math.prod(shape))), shape), extents)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("shape", "extents", "seen"),
    [
        ((4,), (10,), {0, 1, 2, 3}),
        ((2, 3), (10, 16), set(range(6))),
        ((2, 2, 2), (8, 10, 12), set(range(8)) - {6}),  # the corner behind, below and to the left
        ((1, 1, 2, 2), (4, 3, 63, 65), {0, 1, 2, 3}),
        ((2, 1, 2, 1, 2), (4, 1, 20, 24, 28), set(range(8))),
    ],
)
def test_a_layout_shows_every_worker_that_has_a_face(shape, extents, seen):
    svg = layout(shape, extents)._repr_html_()
    assert {int(word) for word in texts(svg) if word.isdigit()} == seen
    assert f"{' x '.join(map(str, extents))} on {' x '.join(map(str, shape))} workers" in texts(svg)


def test_blocks_are_drawn_in_proportion():
    polygons = [p.get("points") for p in ElementTree.fromstring(layout((2,), (9,)).drawing()).iter(f"{SVG}polygon")]
    widths = [float(p.split()[1].split(",")[0]) - float(p.split()[0].split(",")[0]) for p in polygons]
    assert widths[0] / widths[1] == pytest.approx(5 / 4, rel=0.01)


def test_halos_are_dashed_and_end_at_the_edge():
    svg = layout((3,), (9,)).drawing(halo=[(1, 1)])
    dashed = [p for p in ElementTree.fromstring(svg).iter(f"{SVG}polygon") if p.get("stroke-dasharray")]
    assert len(dashed) == 3
    spans = [[float(point.split(",")[0]) for point in p.get("points").split()] for p in dashed]
    assert [round((max(span) - min(span)) / 240 * 9) for span in spans] == [4, 5, 4]


@pytest.mark.parametrize(
    ("shape", "extents"), [((2,), (0,)), ((4,), (2,)), ((64, 64), (64, 64)), ((9, 1, 1, 2), (9, 1, 2, 2))]
)
def test_empty_blocks_and_large_grids_are_drawn(shape, extents):
    ElementTree.fromstring(layout(shape, extents).drawing(halo=[(1, 1)] * len(shape)))


def test_what_cannot_be_drawn_is_refused_and_a_notebook_shows_its_text():
    six = layout((1,) * 6, (2,) * 6)
    assert six._repr_html_() is None
    with pytest.raises(PartitionError, match="6 dims"):
        six.drawing()
    with pytest.raises(PartitionError, match="pair"):
        layout((2,), (4,)).drawing(halo=[(1, 1), (1, 1)])


def test_a_drawing_is_saved(tmp_path):
    layout((2,), (4,)).drawing().save(str(tmp_path / "owners.svg"))
    ElementTree.parse(tmp_path / "owners.svg")


def test_a_partition_shows_its_grid_and_this_worker():
    page = gridwise.world().create_cartesian_topology_partition([1, 1])._repr_html_()
    assert "here worker 0" in page
    assert "<svg" in page


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module(EVIL.replace(".", ""), torch.nn.Conv2d(1, 4, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return next(iter(self.children()))(x)


def escaped(page: str) -> bool:
    return "<script" not in page and "&lt;script&gt;" in page


def test_a_plan_is_short_as_text_and_a_table_as_html():
    Net.__name__ = Net.__qualname__ = EVIL
    plan = gridwise.plan(Net(), (1, 1, 2, 2), (1, 1, 16, 16))
    assert len(repr(plan)) < 300
    assert "sent per step" in repr(plan)
    assert escaped(plan._repr_html_())
    assert plan._repr_html_().count("<table>") == 3


def test_describe_and_checkpoints_escape_the_names_of_users(tmp_path):
    assert escaped(gridwise.describe(Net())._repr_html_())
    checkpoint.save(tmp_path / "run", {EVIL: torch.ones(2, 3), "note": EVIL})
    contents = checkpoint.show(tmp_path / "run")
    assert escaped(contents._repr_html_())
    assert "2 x 3" in str(contents)
    assert len(repr(contents.manifest)) < 200


def test_nothing_is_displayed_besides_in_a_kernel(monkeypatch):
    """Rich shows a table by itself in a notebook, whatever file it is given, unless it is told not to."""
    shown = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *given: shown.append(given))
    plan = gridwise.plan(torch.nn.Conv2d(1, 4, 3, padding=1), (1, 1, 2, 2), (1, 1, 16, 16))
    assert "sent per step" in str(plan)
    assert "weight" in str(gridwise.describe(torch.nn.Linear(2, 2)))
    assert shown == []


# ---- progress -------------------------------------------------------------------------------------------------------
class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def bar_of(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, worker: str = "-", **given: Any) -> str:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("gridwise.log._worker", worker)
    monkeypatch.setattr("gridwise.progress.INTERVAL", 0.0)
    assert list(progress(range(3), "training", **given)) == [0, 1, 2]
    return stream.getvalue()


def test_worker_0_draws_in_a_terminal(monkeypatch):
    for worker in ("-", "0/4"):
        drawn = bar_of(monkeypatch, Terminal(), worker)
        assert "training |" in drawn
        assert "3/3" in drawn
        assert drawn.endswith("\n")


def test_other_workers_files_and_those_who_do_not_want_it_see_nothing(monkeypatch):
    assert bar_of(monkeypatch, Terminal(), "1/4") == ""
    assert bar_of(monkeypatch, io.StringIO()) == ""
    assert bar_of(monkeypatch, Terminal(), shown=False) == ""
    assert bar_of(monkeypatch, Terminal(), "1/4", shown=True) == ""


def test_workers_that_a_notebook_has_started_draw_into_its_cell(monkeypatch):
    monkeypatch.setenv("GRIDWISE_NOTEBOOK", "on")
    assert "3/3" in bar_of(monkeypatch, io.StringIO(), "0/2")


def test_a_bar_waits_and_goes_away(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    bar = ProgressBar("making", 2, patience=3600.0, stays=False)
    bar.report(1)
    bar.close()
    assert stream.getvalue() == ""
    bar = ProgressBar("making", 2, stays=False)
    bar.report(1)
    bar.close()
    assert stream.getvalue().split("\r")[-2].strip() == ""
