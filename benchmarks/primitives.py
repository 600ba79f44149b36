"""Each primitive, forward + backward on 2 workers, against the raw transport call in the same run.

    python benchmarks/primitives.py [--transport mpi|gloo] [--rounds 9]

Every row interleaves our side and its limit, sample by sample, so that noise hits both; medians, and the ratio of
medians. The limit is what no library can avoid: the raw call, and fresh memory for the result. Both sides run with the
same allocator setting; each setting has its own column.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import gridwise
from gridwise import nn
from gridwise.comm.launching.pool import Pool
from layers import measured

Row = tuple[str, float, float, str]


def both_ways(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Callable[[], object]:
    dy = torch.ones_like(layer(x)).contiguous()
    return lambda: torch.autograd.grad(layer(x), x, dy)


def raw_sum(x: torch.Tensor) -> Callable[[], object]:
    """The library's raw all-reduce, in place on warm memory."""
    transport = gridwise.world().transport
    warm = x.detach().clone()
    return lambda: transport._all_sum(warm, transport.everyone)


def raw_exchange(nbytes: int) -> Callable[[], object]:
    transport = gridwise.world().transport
    peer = 1 - transport.rank
    out, into = torch.zeros(nbytes, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8)
    return lambda: transport._post([(peer, out)], [(peer, into)]).wait()


def around(raw: Callable[[], object]) -> Callable[[], object]:
    """A raw exchange with the least that torch needs around it: pack, allocate the result, place block and halo."""
    block = torch.randn(1, 8, 32, 32)

    def call() -> torch.Tensor:
        strip = block.narrow(2, 0, 1).contiguous()
        raw()
        return torch.cat([block, strip], 2)

    return call


def twice(call: Callable[[], object]) -> Callable[[], object]:
    return lambda: (call(), call())


def rows(rounds: int) -> list[Row]:
    """The rows of the table; run by each worker."""
    torch.set_num_threads(1)
    world = gridwise.world()
    line = world.create_cartesian_topology_partition([2])
    tall, wide = (world.create_cartesian_topology_partition(shape) for shape in ([2, 1], [1, 2]))
    one = world.create_partition_inclusive([0]).create_cartesian_topology_partition([1])
    big = torch.randn(16 << 20, requires_grad=True)
    block = torch.randn(2048, 8192, requires_grad=True)
    found: list[Row] = []

    def row(name: str, ours: Callable[[], object], against: str, limit: Callable[[], object], repeat: int = 1) -> None:
        mine, theirs = measured([ours, limit], rounds, repeat)
        found.append((name, mine, theirs, against))

    summed = both_ways(nn.AllSumReduce(line, (0,)), big)
    raw = raw_sum(big)
    row("AllSumReduce 64 MB", summed, "2 raw all-reduces, in place", twice(raw))
    row("AllSumReduce 64 MB", summed, "... and 2 fresh copies", twice(lambda: (raw(), big.detach().clone())))
    moved = both_ways(nn.Repartition(tall, wide), block)
    row("Repartition 64 MB [2,1] -> [1,2]", moved, "2 clones of the block", twice(lambda: block.detach().clone()))
    gathered = both_ways(nn.AllGather(tall, (0,)), block)
    raw = raw_exchange(64 << 20)
    row("AllGather 64 MB", gathered, "2 raw exchanges of 64 MB", twice(raw))
    scattered = both_ways(nn.ReduceScatter(tall, (0,)), block)
    raw = raw_exchange(32 << 20)
    row("ReduceScatter 64 MB", scattered, "2 raw exchanges of 32 MB", twice(raw))
    copied = nn.Broadcast(one, line)
    x = big if world.rank == 0 else gridwise.zero_volume_tensor(requires_grad=True)
    raw = raw_exchange(64 << 20)
    row("Broadcast 64 MB", both_ways(copied, x), "2 raw exchanges of 64 MB", twice(raw))

    image = world.create_cartesian_topology_partition([1, 1, 2, 1])
    small = torch.randn(1, 8, 32, 32, requires_grad=True)
    halo = nn.HaloExchange(image, [(0, 0), (0, 0), (1, 1), (0, 0)])
    raw = raw_exchange(8 * 32 * 4)
    moves = halo(small) is not None and halo._operator
    row("HaloExchange (1,8,32,32): the movement", lambda: moves(small.detach()), "raw exchange", raw, 50)
    row("HaloExchange (1,8,32,32): the movement", lambda: moves(small.detach()), "... and pack, cat", around(raw), 50)
    with gridwise.agreement(False):
        row("... as a layer, no agreement", lambda: halo(small.detach()), "raw exchange", raw, 50)
    row("... as a layer, with agreement", lambda: halo(small.detach()), "raw exchange", raw, 50)
    with gridwise.agreement(False):
        row("... both ways, no agreement", both_ways(halo, small), "2 raw exchanges", twice(raw), 50)
    row("... both ways, with agreement", both_ways(halo, small), "2 raw exchanges", twice(raw), 50)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", choices=["mpi", "gloo"], action="append")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    settings = [(transport, malloc) for transport in options.transport or ["mpi", "gloo"] for malloc in ("on", "off")]
    found = {}
    for transport, malloc in settings:
        with Pool(2, transport=transport, env={"GRIDWISE_MALLOC": malloc, "OMP_NUM_THREADS": "1"}) as pool:
            found[transport, malloc] = pool.run(rows, options.rounds)[0]
    heads = (f"{transport}, malloc {malloc}" for transport, malloc in settings)
    table = Table("primitive, forward + backward", "the limit is", *heads)
    table.title = f"2 workers, {os.cpu_count()} cores: ours, and times the limit"
    for each in zip(*found.values(), strict=True):
        name, *_, against = each[0]
        table.add_row(name, against, *(f"{_time(ours)}  {ours / limit:.2f}" for _, ours, limit, _ in each))
    Console(width=140).print(table)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


if __name__ == "__main__":
    main()
