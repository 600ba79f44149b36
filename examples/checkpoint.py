"""Train on 4 workers, stop, and continue on 2 workers and then in a plain process, with the same losses throughout.

    python examples/checkpoint.py

The model's weight is split over the workers by rows. The loading code does not say how it was saved.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

import gridwise
from gridwise import checkpoint
from gridwise.grid import Grid, Layout

ROWS, COLUMNS, STEPS = 10, 6, 5


class Block(torch.nn.Parameter):
    """A worker's rows of a global weight: a parameter that knows its placement."""

    placement: Layout | None = None


class Rows(torch.nn.Module):
    """y = tanh(W x), where each worker has its rows of W."""

    def __init__(self) -> None:
        super().__init__()
        P = gridwise.world()
        layout = Layout.balanced(Grid(P.ranks, (P.size, 1)), (ROWS, COLUMNS))
        mine = layout.block(P.rank).slices
        whole = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.weight = Block(whole[mine].clone())
        self.weight.placement = layout
        self.register_buffer("goal", torch.linspace(-1, 1, ROWS, dtype=torch.float64)[mine[0]], persistent=False)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(self.weight @ x) - self.goal).square().sum()


def train(folder: Path) -> tuple[int, list[float]]:
    """Continue from the newest checkpoint, if there is one, and save another."""
    P = gridwise.world()
    model = Rows()
    adam = torch.optim.Adam(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(1)
    state: dict[str, Any] = {"model": model, "adam": adam, "data": data, "losses": []}

    series = checkpoint.Series(folder, keep_last=2)
    first = series.load(state) if series.latest() is not None else 0
    for _ in range(STEPS):
        x = torch.randn(COLUMNS, generator=data, dtype=torch.float64)
        loss = model.loss(x)
        adam.zero_grad()
        loss.backward()
        adam.step()
        state["losses"].append(P.transport.all_sum(loss.detach(), P.team).item())
    series.save(state, step=first + STEPS)
    return first, state["losses"]


def main() -> None:
    with tempfile.TemporaryDirectory() as stopping, tempfile.TemporaryDirectory() as straight:
        runs = [gridwise.launch(train, Path(stopping), workers=n)[0] for n in (4, 2)]
        runs.append(train(Path(stopping)))
        for workers, (first, losses) in zip((4, 2, 1), runs, strict=True):
            print(f"{workers} worker(s), from step {first:2}: " + " ".join(f"{loss:.6f}" for loss in losses[first:]))
        for _ in runs:
            _, expected = train(Path(straight))
        difference = max(abs(a - b) for a, b in zip(runs[-1][1], expected, strict=True))
        print(f"one worker all the way differs by at most {difference:.1e}")
        assert difference < 1e-12


if __name__ == "__main__":
    main()
