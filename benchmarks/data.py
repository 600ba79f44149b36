"""The data loader against a bare loop over the same blocks, in the same run; and the bytes that each worker reads.

    python benchmarks/data.py                    64 samples of 1 x 64 x 64 x 64 float32 on 2 workers, (1, 1, 2, 1, 1)

The bare loop opens the file with its library, slices this worker's block of each sample in the same order, and stacks
batches. The ways take turns, epoch by epoch, reading from the page cache; the best of `--repeat` epochs counts, for the
slowest worker. "x bare" is the loader's throughput relative to that loop; the goal is 0.9. Nothing is computed
meanwhile, so read-ahead gains nothing here. It is for a training loop: "from disk, with a step" is the time of an epoch
on top of its steps, where each batch is followed by a step of `--step` milliseconds and the file is not in memory at the
start. "read" is what a worker reads of the file in a first epoch, as the system
counts it: for .npy the bytes from disk, including the system's read-ahead, else the bytes read by the library. "share"
is the worker's part of the file's bytes.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import zarr
from rich.console import Console
from rich.table import Table

import gridwise
from checkpoint import drop_file_from_memory
from gridwise.data import BlockDataset, BlockLoader

SHAPE, CHUNKS, BATCH, GRID = (64, 1, 64, 64, 64), (1, 1, 32, 32, 32), 4, (1, 1, 2, 1, 1)
MIB = 1 << 20


def make(folder: Path) -> dict[str, Path]:
    """The same numbers in each format."""
    values = np.random.default_rng(0).normal(size=SHAPE).astype("float32")
    np.save(folder / "a.npy", values)
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=CHUNKS)
    zarr.create_array(folder / "a.zarr", shape=SHAPE, chunks=CHUNKS, dtype="float32")[:] = values
    return {".npy": folder / "a.npy", "HDF5": folder / "a.h5", "Zarr": folder / "a.zarr"}


def opened(path: Path) -> Any:
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r")
    return h5py.File(path)["x"] if path.suffix == ".h5" else zarr.open_array(path, mode="r")


def bare(array: Any, block: tuple[slice, ...], order: list[int]) -> Iterator[torch.Tensor]:
    """Batches as one would read them without Gridwise."""
    for first in range(0, len(order), BATCH):
        yield torch.from_numpy(np.stack([array[(i, *block[1:])] for i in order[first : first + BATCH]]))


def taken(suffix: str) -> int:
    """Bytes that this process has read so far: from disk for a mapped file, by system calls otherwise."""
    counter = "read_bytes" if suffix == ".npy" else "rchar"
    return int(re.findall(rf"{counter}: (\d+)", Path("/proc/self/io").read_text())[0])


def seconds(batches: Callable[[], Iterator[torch.Tensor]]) -> float:
    gridwise.world().barrier()
    start = time.perf_counter()
    for _ in batches():
        pass
    return time.perf_counter() - start


def with_steps(batches: Callable[[], Iterator[torch.Tensor]], path: Path, step: float) -> Callable[[], Iterator[None]]:
    """A pass over the batches of a file that is not in memory, each followed by `step` seconds of computing."""

    def passed() -> Iterator[None]:
        x = torch.rand(64, 64)
        for _ in batches():
            end = time.perf_counter() + step
            while time.perf_counter() < end:
                x = x @ x / 32
            yield

    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            drop_file_from_memory(file)
    return passed


def measure(path: Path, repeat: int, step: float) -> dict[str, Any]:
    """This worker's best epoch times, and the bytes it read."""
    P_x = gridwise.world().create_cartesian_topology_partition(GRID)
    block = gridwise.local_slice(P_x, SHAPE)
    array, dataset = opened(path), BlockDataset(path, P_x)
    order = torch.randperm(SHAPE[0], generator=torch.Generator().manual_seed(0)).tolist()
    ways: dict[str, Callable[[], Iterator[torch.Tensor]]] = {"bare": lambda: bare(array, block, order)}
    loaders = {f"prefetch={n}": BlockLoader(dataset, BATCH, shuffle=True, prefetch=n) for n in (0, 2)}
    ways |= {name: loader.__iter__ for name, loader in loaders.items()}
    if path.is_file() and P_x.rank == 0:
        drop_file_from_memory(path)
    before = taken(path.suffix)
    seconds(ways["prefetch=0"])
    read = taken(path.suffix) - before
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeat):
        for name, way in ways.items():
            times[name].append(seconds(way))
        for name, loader in loaders.items():
            times.setdefault(f"steps, {name}", []).append(seconds(with_steps(loader.__iter__, path, step)))
    for loader in loaders.values():
        loader.close()
    return {**{name: min(found) for name, found in times.items()}, "read": read}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--step", type=float, default=10.0, help="milliseconds of a step")
    options = parser.parse_args()
    workers = int(np.prod(GRID))
    table = Table("file", "read / share, MiB", "bare loop", "prefetch=0", "x bare", "prefetch=2", "x bare")
    beside = Table("file", "the steps", "reading on top, prefetch=0", "prefetch=2")
    steps = -(-SHAPE[0] // BATCH) * options.step
    with tempfile.TemporaryDirectory() as name:
        for kind, path in make(Path(name)).items():
            found = gridwise.launch(measure, path, options.repeat, options.step / 1e3, workers=workers)
            size = sum(f.stat().st_size for f in ([path] if path.is_file() else path.rglob("*")) if f.is_file())
            slowest = {key: max(one[key] for one in found) for key in found[0]}
            rates = {key: size / workers / MIB / slowest[key] for key in slowest if key != "read"}
            on_top = (1e3 * slowest[f"steps, prefetch={n}"] - steps for n in (0, 2))
            beside.add_row(kind, f"{steps:.0f} ms", *(f"{ms:.1f} ms" for ms in on_top))
            row = [f"{rates['bare']:.0f} MiB/s"]
            for key in ("prefetch=0", "prefetch=2"):
                row += [f"{rates[key]:.0f} MiB/s", f"{slowest['bare'] / slowest[key]:.2f}"]
            table.add_row(kind, f"{slowest['read'] / MIB:.1f} / {size / workers / MIB:.1f}", *row)
    beside.title = f"an epoch from disk, with a step of {options.step:g} ms after each batch"
    Console(width=120).print(table, beside)


if __name__ == "__main__":
    main()
