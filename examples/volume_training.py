"""Train from a Zarr volume larger than a worker's memory limit, killed twice and resumed on another grid; then predict.

    python examples/volume_training.py

Workers read only their blocks of random crops. Runs on 2, then 4, then 2 workers, the first two of which are killed,
have the same losses as one uninterrupted worker, use each sample as often, and predict the same, block by block.
"""

from __future__ import annotations

import os
import resource
import signal
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr

import gridwise
from gridwise import checkpoint, nn
from gridwise.data import BlockDataset, BlockLoader, BlockWriter, RandomCrop, RandomFlip

SAMPLES, SIDE, CROP, BATCH, EPOCHS = 128, 48, 24, 16, 2
MIB = 1 << 20
LIMIT = 48 * MIB
"""Bytes that a worker may allocate beyond what it has after its first step; the volume has 54 MiB, its targets 14."""
GRIDS = {1: (1, 1, 1, 1, 1), 2: (1, 1, 2, 1, 1), 4: (2, 1, 1, 2, 1)}


def make_volume(folder: Path) -> None:
    """Write samples, each a random sphere in a box with noise, and targets: the sphere."""
    shape, chunks = (SAMPLES, 1, SIDE, SIDE, SIDE), (1, 1, 24, SIDE, SIDE)
    x = zarr.create_array(folder / "x.zarr", shape=shape, chunks=chunks, dtype="float32")
    y = zarr.create_array(folder / "y.zarr", shape=shape, chunks=chunks, dtype="uint8")
    random, axis = np.random.default_rng(0), np.arange(SIDE)
    for sample in range(SAMPLES):
        a, b, c = random.uniform(15, 33, 3)
        inside = (axis[:, None, None] - a) ** 2 + (axis[:, None] - b) ** 2 + (axis - c) ** 2 < 15**2
        y[sample, 0] = inside
        x[sample, 0] = inside + random.normal(0, 0.3, inside.shape).round(1)


def limit_memory() -> None:
    """Limit this worker to the memory it has now plus `LIMIT`."""
    threading.stack_size(MIB)  # stacks of threads count too
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + LIMIT,) * 2)


def train(folder: Path, name: str, die_at: int | None = None) -> tuple[list[float], list[int]]:
    """Train to the end from the newest checkpoint of this name; returns the losses and samples of all steps."""
    device, world = gridwise.device(), gridwise.world()
    P_x = world.grid(*GRIDS[world.size])
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv3d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv3d(4, 1, 1))
    model, criterion = gridwise.distribute(net.to(device), P_x), nn.DistributedBCEWithLogitsLoss(P_x)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)

    arrays, augment = (folder / "x.zarr", folder / "y.zarr"), [RandomCrop((CROP,) * 3), RandomFlip([-1, -2, -3])]
    dataset = BlockDataset(arrays, P_x, dtype=torch.float32, transforms=augment)
    loader = BlockLoader(dataset, BATCH, shuffle=True, seed=1, device=device)
    state: dict[str, Any] = {"model": model, "adam": adam, "loader": loader, "losses": [], "seen": []}
    series = checkpoint.Series(folder / name, keep_last=1)
    if series.latest() is not None:
        series.load(state)
    first = len(state["losses"])
    while loader.epoch < EPOCHS:
        for x, y in loader:
            if len(state["losses"]) == die_at and world.rank == world.size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = criterion(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            state["losses"].append(float(loss.detach()))
            state["seen"] += loader.samples
            series.save(state, len(state["losses"]))
            if len(state["losses"]) == first + 1 and world.size > 1:
                limit_memory()  # after the first step, which imports and allocates what the others use again
    predict(model, folder, name, P_x, device)
    return state["losses"], state["seen"]


def predict(model: Any, folder: Path, name: str, P_x: gridwise.CartesianPartition, device: torch.device) -> None:
    """Predict whole samples and write them to a Zarr array; no worker holds more than its block."""
    shape, loader = (SAMPLES, 1, SIDE, SIDE, SIDE), BlockLoader(BlockDataset(folder / "x.zarr", P_x), device=device)
    with torch.no_grad(), BlockWriter(folder / f"{name}.zarr", shape, P_x, chunks=(1, 1, 24, SIDE, SIDE)) as writer:
        for x in loader:
            writer.write(model(x), loader.samples)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_volume(folder)
        ((alone, _),) = gridwise.launch(train, folder, "alone", workers=1)
        for workers, die_at in ((2, 4), (4, 11)):
            try:
                gridwise.launch(train, folder, "grids", die_at, workers=workers)
            except gridwise.errors.WorkerDied as error:
                print(f"{workers} workers, killed before step {die_at}: {str(error).splitlines()[0]}")
        losses, seen = gridwise.launch(train, folder, "grids", workers=2)[0]
        one, many = (zarr.open_array(folder / f"{name}.zarr", mode="r")[:] for name in ("alone", "grids"))
    print(f"losses       {', '.join(f'{loss:.4f}' for loss in losses)}")
    print(f"on 1 worker  {', '.join(f'{loss:.4f}' for loss in alone)}")
    times = set(Counter(seen).values())
    print(f"predictions differ by {abs(one - many).max():.1e} at most, each sample was seen {times} times")
    assert np.allclose(alone, losses, rtol=1e-4)
    assert np.allclose(one, many, atol=1e-4)
    assert Counter(seen) == dict.fromkeys(range(SAMPLES), EPOCHS)


if __name__ == "__main__":
    main()
