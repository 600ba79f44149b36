"""The table of a model: what it counts, how it prints."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gridwise.deferred_init import deferred_init
from gridwise.grid import Grid, Layout
from gridwise.show.describe import describe


def tied() -> nn.Module:
    net = nn.Sequential(nn.Embedding(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 64))
    net[2].weight = net[0].weight
    return net


@pytest.mark.parametrize("build", [tied, lambda: deferred_init(tied)], ids=["real", "deferred"])
def test_counts_tied_tensors_once(build: object) -> None:
    table = describe(build())  # type: ignore[operator]
    assert table.parameters == 64 * 16 + 64 + 2 * 16
    assert table.bytes == 4 * table.parameters + 4 * 2 * 16 + 8
    assert {r.name: r.tied for r in table.rows}["2.weight"] == "0.weight"


def test_prints_in_a_terminal_and_as_html() -> None:
    table = describe(deferred_init(tied))
    text, page = str(table), table._repr_html_()
    for part in ("0.weight", "(64, 16)", "parameter, deferred", "= 0.weight", "1,120 parameters"):
        assert part in text
        assert part in page
    assert "deferred" not in str(describe(tied()))
    assert page.count("<tr>") == page.count("</tr>") == len(table.rows) + 2


def test_html_is_escaped() -> None:
    net = nn.Module()
    net.register_parameter("<b>", nn.Parameter(torch.ones(1)))
    assert "&lt;b&gt;" in describe(net)._repr_html_()


def test_bytes_per_worker() -> None:
    def rows(name: str, shape: torch.Size, rank: int) -> tuple[slice, ...] | None:
        n = shape[0] if shape else 0
        return (slice(n * rank // 3, n * (rank + 1) // 3),) if "weight" in name else None

    table = describe(nn.Linear(10, 8), layout=rows, workers=3)
    assert [r.worker_size for r in table.rows] == [3 * 10 * 4, 8 * 4]  # blocks of 2, 3 and 3 rows; the bias on all
    assert table.bytes_per_worker == 3 * 10 * 4 + 8 * 4
    assert "per worker" in str(table)
    with pytest.raises(ValueError, match="together"):
        describe(nn.Linear(1, 1), workers=3)


def test_bytes_per_worker_are_those_of_one_worker() -> None:
    """The largest blocks of two tensors are on different workers."""
    grid = Grid((0, 1), (2,))
    net = nn.ParameterDict({"a": nn.Parameter(torch.ones(10)), "b": nn.Parameter(torch.ones(10))})
    table = describe(net, {"a": Layout(grid, ((0, 9, 10),)), "b": Layout(grid, ((0, 1, 10),))}, workers=2)
    assert [row.worker_size for row in table.rows] == [36, 36]
    assert table.bytes_per_worker == 40


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_modules() -> None:
    table = describe(nn.LazyLinear(3))
    assert "not known yet" in str(table)
    assert table.bytes == 0


def test_names_are_printed_as_they_are() -> None:
    net = nn.ParameterDict({"[bold]a": nn.Parameter(torch.ones(2))})
    assert "[bold]a" in str(describe(net))


def test_what_is_no_module() -> None:
    with pytest.raises(TypeError, match="it is a Tensor"):
        describe(torch.ones(2))  # type: ignore[arg-type]
