"""What it costs one worker to set a layer up among 8, 64, 512 and 4096: time, control bytes, messages.

    python benchmarks/setup_cost.py

The counting transport runs the real code of one worker in the middle of the grid. Flat or logarithmic is what we want.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import gridwise
from gridwise import nn
from gridwise.comm.transports.counting import Ledger
from gridwise.grid import Layout

GRIDS = {8: (2, 2, 2), 64: (4, 4, 4), 512: (8, 8, 8), 4096: (16, 16, 16)}
LAYERS: dict[str, Callable[[gridwise.CartesianPartition], nn.Module]] = {
    "HaloExchange, 1 row each way": lambda P: nn.HaloExchange(P, [(1, 1)] * 3),
    "Repartition to a line of slabs": lambda P: nn.Repartition(
        P, gridwise.world(P.transport).create_cartesian_topology_partition([P.size, 1, 1])
    ),
    "AllGather along one axis": lambda P: nn.AllGather(P, (0,)),
    "AllSumReduce over all": lambda P: nn.AllSumReduce(P, (0, 1, 2)),
}


def main() -> None:
    columns = ("set-up", "control bytes of it", "messages per call", "bytes sent per call", "control bytes per call")
    table = Table("layer", "workers", *columns)
    for name, make in LAYERS.items():
        for size, shape in GRIDS.items():
            seconds, first, ledger, rank = min(
                (set_up(make, size, shape) for _ in range(5)), key=lambda found: found[0]
            )
            sent = ledger.bytes_sent(rank) - ledger.bytes_sent(rank, "control")
            control = ledger.bytes_sent(rank, "control")
            counts = (first, ledger.messages_sent(rank), sent, control)
            table.add_row(name, str(size), f"{seconds * 1e6:.0f} us", *map(str, counts))
        table.add_section()
    Console(width=120).print(table)


def set_up(make: Callable, size: int, shape: tuple[int, ...]) -> tuple[float, int, Ledger, int]:
    """Seconds and control bytes of the first call of one worker in the middle of the grid, construction included, and the
    ledger of the second; 8 rows a worker and dim."""
    ledger = Ledger(size)
    place = size // 2 + size // 4
    world = gridwise.world(ledger.worker(place))
    P = world.create_cartesian_topology_partition(shape)
    layout = Layout.balanced(P.grid, [8 * p for p in shape])
    ledger.declare(layout)
    x = torch.empty(layout.block(place).shape, device="meta")
    start = time.perf_counter()
    layer = make(P)
    layer(x)
    seconds, control = time.perf_counter() - start, ledger.bytes_sent(place, "control")
    ledger.entries.clear()
    layer(x)
    return seconds, control, ledger, place


if __name__ == "__main__":
    main()
