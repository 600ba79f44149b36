"""Which tables are drawn, and what of them: `PLOTS` has one line for each picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from .tables import columns_in, number, tables_in


@dataclass(frozen=True)
class Row:
    """One case: what the limit takes, and how many times as much ours and the peers take."""

    label: str
    times: dict[str, float]
    shown: str
    goal: float = math.nan


@dataclass(frozen=True)
class Plot:
    """A picture of one benchmark's figures; 1 on its axis is what `limit` takes."""

    benchmark: str
    title: str
    limit: str
    read: Callable[[str], list[Row]]
    name: str = ""
    better: str = field(default="less is better", kw_only=True)

    @property
    def file(self) -> str:
        return f"figures_{self.benchmark}{f'_{self.name}' if self.name else ''}.svg"


def beside(
    label: str | tuple[str, ...],
    limit: str,
    ours: str,
    *peers: str,
    goal: str = "",
    unit: str = "",
    table: int = 0,
    only: str = "",
) -> Callable[[str], list[Row]]:
    """Rows of a table with a column for each of ours, the limit and the peers. `label` names one column, or several."""

    def read(text: str) -> list[Row]:
        return [row_of(row) for row in tables_in(text)[table].rows if only in " ".join(row.values())]

    def row_of(row: dict[str, str]) -> Row:
        base = number(row[limit])
        times = {name_of(name): number(row[name]) / base for name in (ours, *peers)}
        name = ", ".join(filter(None, (row[column] for column in labels(label))))
        shown = f"{plain(row[ours])} / {plain(row[limit])}{unit and f' {unit}'}"
        return Row(name, times, shown, goal_in(row.get(goal, "")))

    def name_of(column: str) -> str:
        return "ours" if column == ours else column.removesuffix(" ms")

    return read


def labels(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else given


def plain(cell: str) -> str:
    return " ".join(cell.split()[:2])


def goal_in(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def ratios(label: str | tuple[str, ...], *columns: str, table: int = 0) -> Callable[[str], list[Row]]:
    """Rows of a table whose cells say "128.9 ms  1.11": what ours takes, and how many times the limit."""

    def read(text: str) -> list[Row]:
        return [
            Row(
                ", ".join(row[column] for column in labels(label)),
                {column: number(row[column].split()[-1]) for column in columns},
                plain(row[columns[0]]),
            )
            for row in tables_in(text)[table].rows
        ]

    return read


def checkpoints(text: str) -> list[Row]:
    """Of each table a row for saving, loading and loading what the system holds; the series are the table's rows."""
    rows = []
    for title, table in columns_in(text):
        by_name = {row[""]: row for row in table.rows}
        for column, what in (("save s", "save"), ("load s", "load"), ("warm s", "load, warm")):
            base = number(by_name["raw"][column])
            times = {name: number(row[column]) / base for name, row in by_name.items() if name != "raw"}
            shown = f"{by_name['gridwise'][column]} / {by_name['raw'][column]} s"
            rows.append(Row(f"{title}: {what}", {"ours": times.pop("gridwise"), **times}, shown))
    return rows


def tiled_memory(text: str) -> list[Row]:
    read = beside(("model", ""), "plain MiB", "measured", unit="MiB")
    return read(text)


WORKERS = "2 workers, 2 cores"
PLOTS: tuple[Plot, ...] = (
    Plot(
        "primitives",
        f"Primitives, forward + backward, {WORKERS}",
        "the raw call and fresh memory",
        ratios(("primitive, forward + backward", "the limit is"), "mpi, malloc on", "gloo, malloc on"),
    ),
    Plot(
        "layers",
        f"Layers, forward + backward, {WORKERS}",
        "torch's layer on a block",
        beside("layer, forward + backward", "limit", "ours", goal="goal"),
    ),
    Plot(
        "layers_norm",
        f"Norms, upsampling, a U-Net, {WORKERS}",
        "torch on a block, by itself",
        beside("work, forward + backward", "limit ms", "ours ms", goal="target", unit="ms"),
    ),
    Plot(
        "scaling",
        "Weak scaling of a U-Net step",
        "independent processes on a block each",
        beside(("workers", "transport", "block"), "limit ms", "ours ms", "in step ms", goal="goal", unit="ms"),
    ),
    Plot(
        "data_parallel",
        f"A batch cut over workers, {WORKERS}",
        "the model alone, on one worker's part",
        beside(("U-Net step", "norm"), "alone ms", "ours ms", "DDP ms", unit="ms"),
    ),
    Plot(
        "gpu",
        "One H200, one or two workers",
        "plain torch, without communication",
        beside("what", "limit ms", "ours ms", goal="goal", unit="ms"),
    ),
    Plot(
        "tiled_gpu",
        "tiled on an H200: time",
        "the plain call",
        beside(("model", ""), "plain ms", "tiled ms", unit="ms"),
        "time",
    ),
    Plot("tiled_gpu", "tiled on an H200: peak memory", "the plain call", tiled_memory, "memory"),
    Plot(
        "memory",
        "Peak memory of a step on the worker that needs most",
        "1/P of the sequential step",
        beside(("step", "workers"), "1/P of sequential", "ours"),
    ),
    Plot("checkpoint", "Checkpoints: seconds", "raw write + fsync, raw read", checkpoints),
)
