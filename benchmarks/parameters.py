"""Parameters that are cut over the workers of a batch, against FSDP2 (`fully_shard`) and against whole ones.

    python benchmarks/parameters.py [--width 768] [--depth 14] [--rounds 7]

A transformer with AdamW, of 100 million parameters unless told otherwise. Memory on 4 workers: what each holds between steps
(parameters, gradients, states), and the peak of a step above that, from the profiler's record of every allocation. Time on 2
workers: ours and FSDP2 take turns in the same processes, over gloo. Bytes received per step are counted at the transport, and
compared with those that `gridwise.plan` says.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import gridwise
from gridwise.comm.launching.pool import Pool
from gridwise.comm.transports.torch_distributed import TorchTransport
from layers import measured
from memory import ENV, MIB, peak_of

KINDS = "whole", "states cut", "cut", "FSDP2"
TOKENS = 32
PREFETCH = 32 * MIB
GOAL, HOLDS = 1.10, 1.1


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.mix(self.first(x)).view(batch, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def made(width: int, depth: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width) for _ in range(depth)))


@dataclass
class Side:
    """A model with its optimiser, ready for steps on this worker's sample."""

    model: Any
    optimizer: torch.optim.Optimizer
    x: Tensor

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.x).square().sum().backward()
        self.optimizer.step()

    @property
    def held(self) -> int:
        """The bytes of parameters, gradients and states, as they are between the steps."""
        own = list(self.model.parameters())
        states = [x for state in self.optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        found = [*own, *(p.grad for p in own if p.grad is not None), *states]
        return sum((x.to_local() if hasattr(x, "to_local") else x).nbytes for x in found)


def side(kind: str, width: int, depth: int) -> Side:
    world, x = gridwise.world(), torch.randn(1, TOKENS, width)
    model: Any = made(width, depth)
    if kind == "FSDP2":
        assert isinstance(world.transport, TorchTransport)
        mesh = DeviceMesh.from_group(world.transport.group_of(world.transport.everyone), "cpu")
        for part in (*model, model):
            fully_shard(part, mesh=mesh)
    else:
        P_x = world.create_cartesian_topology_partition([world.size, 1, 1])
        parameters: Any = "cut" if kind == "cut" else "whole"
        model = gridwise.distribute(model, P_x, parameters=parameters, prefetch_bytes=PREFETCH)
    optimizer: Callable[..., Any] = torch.optim.AdamW
    if kind == "states cut":
        return Side(model, gridwise.optim.cut_states(optimizer, model.parameters(), lr=1e-4), x)  # type: ignore[arg-type]
    return Side(model, optimizer(model.parameters(), lr=1e-4), x)


def memory(kind: str, width: int, depth: int) -> tuple[int, int]:
    """Bytes that this worker holds between steps, and the peak of a step above that."""
    torch.set_num_threads(1)
    one = side(kind, width, depth)
    one.step()

    return one.held, peak_of(one.step)


def received(kind: str, width: int, depth: int) -> int:
    """The bytes of parameters and gradients that this worker receives in a step, in messages."""
    one, total = side(kind, width, depth), 0
    transport, move = gridwise.world().transport, gridwise.world().transport.move

    def counted(sends: Any, receives: Any, dtype: Any, *rest: Any) -> Any:
        nonlocal total
        total += sum(view.numel() * dtype.itemsize for _, views in receives for view in views)
        return move(sends, receives, dtype, *rest)

    one.step()
    transport.move = counted  # type: ignore[method-assign]
    try:
        one.step()
    finally:
        del transport.move
    return total


def times(width: int, depth: int, rounds: int) -> list[float]:
    """Median seconds of a step: ours and FSDP2's."""
    torch.set_num_threads(1)
    return measured([side(kind, width, depth).step for kind in ("cut", "FSDP2")], rounds)


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--depth", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory-workers", type=int, default=4)
    options = parser.parse_args(given)
    with torch.device("meta"):
        model = made(options.width, options.depth)
    size = sum(p.nbytes for p in model.parameters())
    shape, workers = (options.width, options.depth), options.memory_workers
    table = Table("parameters", "held MiB", "of whole", "goal", "peak of the step above it, MiB")
    table.title = f"{size / 4e6:.0f} million parameters, AdamW, {workers} workers over gloo, the one that needs most"
    whole = 0
    for kind in KINDS:
        with Pool(workers, "gloo", env=ENV) as pool:
            rows = pool.run(memory, kind, *shape)
        held, peak = max(row[0] for row in rows), max(row[1] for row in rows)
        whole = whole or held
        goal = f"{HOLDS / workers:.3f}" if kind == "cut" else ""
        table.add_row(kind, f"{held / MIB:.1f}", f"{held / whole:.3f}", goal, f"{peak / MIB:.1f}")
    Console(width=120).print(table)
    with Pool(2, "gloo") as pool:
        ours, fsdp = pool.run(times, *shape, options.rounds)[0]
        counted = pool.run(received, "cut", *shape)
    planned = gridwise.plan(model, (2, 1, 1), (2, TOKENS, options.width), parameters="cut")
    table = Table("step", "ours ms", "FSDP2 ms", "ours / FSDP2", "goal", "received / parameters", "as planned")
    table.title = "2 workers over gloo, the batch cut"
    same = all(bytes == worker.received for bytes, worker in zip(counted, planned.workers, strict=True))
    ratio = f"{max(counted) / size:.3f}"
    table.add_row(
        "cut",
        f"{1e3 * ours:.0f}",
        f"{1e3 * fsdp:.0f}",
        f"{ours / fsdp:.2f}",
        f"{GOAL:.2f}",
        ratio,
        "yes" if same else "no",
    )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
