"""The cost for one worker of setting up a layer among 8, 64, 512 and 4096: time, control bytes, messages.

    python benchmarks/setup_cost.py

The counting transport runs the real code of one worker in the middle of the grid. Growth should be flat or logarithmic.
The second table is a whole model, a U-Net with batch norm: agreements of its first step, which also sets it up, and of
every later one. Each of n workers sends log2(n) messages per agreement. Goal: at most 10 agreements in the first step,
2 in the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import gridwise
from gridwise import nn
from gridwise.comm.messages.dissemination import messages
from gridwise.comm.transports.counting import CountingTransport, Entry, Ledger
from gridwise.grid import Layout
from gridwise.planning import count
from layers_norm import UNet

GRIDS = {8: (2, 2, 2), 64: (4, 4, 4), 512: (8, 8, 8), 4096: (16, 16, 16)}
MODELS = {
    "samples": {size: (size, 1, 1, 1) for size in (64, 512, 4096)},
    "height and width": {64: (1, 1, 8, 8), 512: (1, 1, 32, 16), 4096: (1, 1, 64, 64)},
}
LAYERS: dict[str, Callable[[gridwise.CartesianPartition], nn.Module]] = {
    "HaloExchange, 1 row each way": lambda P: nn.HaloExchange(P, [(1, 1)] * 3),
    "Repartition to a line of slabs": lambda P: nn.Repartition(
        P, gridwise.world(P.transport).create_cartesian_topology_partition([P.size, 1, 1])
    ),
    "AllGather along one axis": lambda P: nn.AllGather(P, (0,)),
    "AllSumReduce over all": lambda P: nn.AllSumReduce(P, (0, 1, 2)),
}


def main() -> None:
    print_layers()
    print_models()


def print_layers() -> None:
    columns = ("set-up", "its control bytes", "messages a call", "bytes sent a call", "control bytes a call")
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
    Console(width=140).print(table)


def set_up(make: Callable, size: int, shape: tuple[int, ...]) -> tuple[float, int, Ledger, int]:
    """Seconds and control bytes of the first call on one worker in the middle of the grid, construction included, and
    the ledger of the second; 8 rows per worker and dim."""
    ledger = Ledger(size)
    place = size // 2 + size // 4
    world = gridwise.world(ledger.worker(place))
    P = world.create_cartesian_topology_partition(shape)
    layout = Layout.balanced(P.geometry, [8 * p for p in shape])
    ledger.declare(layout)
    x = torch.empty(layout.block(place).shape, device="meta")
    start = time.perf_counter()
    layer = make(P)
    layer(x)
    seconds, control = time.perf_counter() - start, ledger.bytes_sent(place, "control")
    ledger.entries.clear()
    layer(x)
    return seconds, control, ledger, place


def print_models() -> None:
    columns = ("first step: agreements", "messages", "bytes", "later steps: agreements", "messages", "bytes")
    table = Table("U-Net cut along", "workers", *columns, "sums", "halo messages")
    for name, shapes in MODELS.items():
        for size, shape in shapes.items():
            first, later = steps(size, shape)
            sums, halos = (sum(entry.kind == kind for entry in later) for kind in ("sum", "message"))
            table.add_row(name, str(size), *agreements(first), *agreements(later), str(sums), str(halos))
        table.add_section()
    Console(width=140).print(table)


def steps(size: int, shape: tuple[int, ...]) -> tuple[list[Entry], list[Entry]]:
    """What a worker in the middle of the grid sends in its first two training steps; 32 x 32 pixels per worker."""
    place, block = size // 2 + size // 4, (1, 3, 32, 32)

    def program(P_world: gridwise.Partition) -> None:
        transport = P_world.transport
        assert isinstance(transport, CountingTransport)
        model = gridwise.distribute(UNet(4), P_world.create_cartesian_topology_partition(shape))
        for phase in ("first", "later"):
            transport.ledger.phase = phase
            transport.ledger.expect(tuple(p * n for p, n in zip(shape, block, strict=True)))
            model(torch.empty(block)).sum().backward()

    with torch.device("meta"):
        entries = count(program, size, [place]).entries[place]
    first, later = ([entry for entry in entries if entry.phase == phase] for phase in ("first", "later"))
    return first, later


def agreements(entries: list[Entry]) -> list[str]:
    """The number of agreements, the messages that one worker sends for them, and the sum of their sizes in bytes."""
    control = [entry for entry in entries if entry.kind == "control"]
    sent = sum(messages(len(entry.peers)) for entry in control)
    return [str(number) for number in (len(control), sent, sum(entry.nbytes for entry in control))]


if __name__ == "__main__":
    main()
