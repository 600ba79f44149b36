"""Checkpoints against raw files, safetensors, torch.save and torch.distributed.checkpoint, in the same run.

    python benchmarks/checkpoint.py                        2 GiB and 10,000 tensors, 1 and 2 workers; needs 10 GiB of memory
    python benchmarks/checkpoint.py --size 256             with less of it

Every save ends with the data synced to disk; every load fills existing tensors. "raw" writes each tensor's bytes to one
file per worker, syncs it, and reads them back in place: no format, no checksum. Loads are measured twice: from disk,
after the system was asked to drop the files from its page cache, as after a restart ("load"), and from the page cache
("warm"). The ways take turns, and the best of `--repeat` rounds counts, because other programs share the disk. "x raw"
is the speed relative to raw; "+MiB" is the peak resident memory during the call, above that before it. The line below
the table is the speed of a warm load that hashes all bytes in place before it copies any, with one core per worker;
gridwise uses as many threads per worker as there are cores for it, a number given in the next line. A save or load ends
when all workers have finished; a stall is how long the call keeps the slowest worker from training, measured like the
memcpy that it is compared with: neither waits for the other workers after the call.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MIB = 1 << 20
State = dict[str, Tensor]


def large(size: int, workers: int) -> State:
    """This worker's part of 16 tensors that have `size` MiB in all."""
    rows = size * MIB // 16 // 4 // 1024 // workers
    return {f"layer{i}.weight": torch.full((rows, 1024), float(i + 1)) for i in range(16)}


def small(count: int, workers: int) -> State:
    """This worker's part of `count` tensors of 4 KiB."""
    return {f"layers.{i}.weight": torch.full((32, 32), float(i)) for i in range(count // workers)}


class Peak:
    """Peak resident memory while the body runs, above that before it."""

    def __enter__(self) -> Peak:
        self.before = self.most = _resident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.most = max(self.most, _resident())

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def extra(self) -> float:
        return (self.most - self.before) / MIB


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


# The ways: save(path, state, rank) and load(path, state, rank)


def raw_save(path: Path, state: State, rank: int) -> None:
    path.mkdir(exist_ok=True)
    with open(path / f"{rank}.bin", "wb", buffering=0) as file:
        for x in state.values():
            file.write(x.numpy())
        os.fsync(file.fileno())


def raw_load(path: Path, state: State, rank: int) -> None:
    with open(path / f"{rank}.bin", "rb", buffering=0) as file:
        for x in state.values():
            file.readinto(memoryview(x.numpy()).cast("B"))


def hashed_load(path: Path, state: State, rank: int) -> None:
    """The least work of a load that checks all bytes before changing any tensor: one hashing pass, then a raw load."""
    import xxhash

    for x in state.values():
        data = memoryview(x.numpy()).cast("B")
        for start in range(0, len(data), MIB):
            xxhash.xxh3_64_intdigest(data[start : start + MIB])
    raw_load(path, state, rank)


def safetensors_save(path: Path, state: State, rank: int) -> None:
    from safetensors.torch import save_file

    path.mkdir(exist_ok=True)
    save_file(state, path / f"{rank}.safetensors")
    _sync(path / f"{rank}.safetensors")


def safetensors_load(path: Path, state: State, rank: int) -> None:
    from safetensors.torch import load_file

    for key, value in load_file(path / f"{rank}.safetensors").items():
        state[key].copy_(value)


def torch_save(path: Path, state: State, rank: int) -> None:
    path.mkdir(exist_ok=True)
    torch.save(state, path / f"{rank}.pt")
    _sync(path / f"{rank}.pt")


def torch_load(path: Path, state: State, rank: int) -> None:
    for key, value in torch.load(path / f"{rank}.pt", weights_only=True).items():
        state[key].copy_(value)


def dcp_save(path: Path, state: State, rank: int) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({f"{key}@{rank}": value for key, value in state.items()}, checkpoint_id=path)


def dcp_load(path: Path, state: State, rank: int) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.load({f"{key}@{rank}": value for key, value in state.items()}, checkpoint_id=path)


def our_save(path: Path, state: State, rank: int) -> None:
    from gridwise import checkpoint

    checkpoint.save(path, _ours(state))


def our_load(path: Path, state: State, rank: int) -> None:
    from gridwise import checkpoint

    checkpoint.load(path, _ours(state))


def our_async(path: Path, state: State, rank: int) -> None:
    from gridwise import checkpoint

    _pending.append(checkpoint.async_save(path, _ours(state)))


_pending: list[Any] = []


def _ours(state: State) -> Any:
    import gridwise
    from gridwise import checkpoint

    return state if gridwise.world().size == 1 else {"part": checkpoint.PerWorker(state)}


def memcpy_into(copy: State) -> Callable[[Path, State, int], None]:
    """The limit of copying the state into existing memory, `copy`."""

    def memcpy(path: Path, state: State, rank: int) -> None:
        for key, value in state.items():
            copy[key].copy_(value)

    return memcpy


WAYS: dict[str, tuple[Callable[[Path, State, int], None], Callable[[Path, State, int], None]]] = {
    "raw": (raw_save, raw_load),
    "gridwise": (our_save, our_load),
    "safetensors": (safetensors_save, safetensors_load),
    "torch.save": (torch_save, torch_load),
    "dcp": (dcp_save, dcp_load),
}


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def drop_from_memory(folder: Path) -> None:
    """Ask the system to drop these files from its page cache, so that they are next read from disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            drop_file_from_memory(path)


def drop_file_from_memory(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# The run, on every worker


def run(kind: str, amount: int, repeat: int, folder: Path, ways: list[str]) -> dict[str, dict[str, float]]:
    """Seconds, extra MiB and bytes of every way, best of `repeat` rounds; the slowest worker counts."""
    import gridwise
    from gridwise.checkpoint.reading.reader import number_of_threads

    warnings.filterwarnings("ignore", category=UserWarning)
    P = gridwise.world()
    torch.set_num_threads(1)
    state = (large if kind == "large" else small)(amount, P.size)
    memcpy = memcpy_into({key: torch.zeros_like(value) for key, value in state.items()})
    results: dict[str, dict[str, float]] = {name: {} for name in (*WAYS, "async", "memcpy")}
    results["gridwise"]["threads"] = number_of_threads(P.transport.cores) if kind == "large" else 1

    def timed(name: str, what: str, call: Callable[[Path, State, int], None], together: bool = True) -> None:
        P.barrier()
        with Peak() as peak:
            begin = time.perf_counter()
            call(folder / name, state, P.rank)
            if together:
                P.barrier()
            seconds = time.perf_counter() - begin
        found = results[name]
        found[what] = min(found.get(what, 1e9), seconds)
        found[what + " MiB"] = min(found.get(what + " MiB", 1e9), peak.extra)

    for _ in range(repeat):
        for name, (save, load) in WAYS.items():
            if name not in ("raw", *ways):
                continue
            if name == "dcp" and P.size > 1 and not torch.distributed.is_initialized():
                continue
            if P.rank == 0:
                shutil.rmtree(folder / name, ignore_errors=True)
            timed(name, "save", save)
            drop_from_memory(folder / name)
            timed(name, "load", load)
            timed(name, "warm", load)
            if name == "raw":
                timed(name, "hashed", hashed_load)
            if P.rank == 0:
                results[name]["bytes"] = sum(f.stat().st_size for f in (folder / name).rglob("*") if f.is_file())
                shutil.rmtree(folder / name)
        timed("memcpy", "save", memcpy, together=False)
        timed("async", "save", our_async, together=False)
        _pending.pop().wait()
    return results


def report(title: str, results: dict[str, dict[str, float]]) -> None:
    raw = results["raw"]
    print(f"\n{title}")
    columns = "".join(f"{what + ' s':>9}{'x raw':>7}{'+MiB':>7}" for what in ("save", "load", "warm"))
    print(f"{'':12}{columns}{'bytes/raw':>11}")
    for name in WAYS:
        r = results[name]
        if "save" not in r:
            continue
        columns = "".join(
            f"{r[what]:9.3f}{raw[what] / r[what]:7.2f}{r[what + ' MiB']:7.0f}" for what in ("save", "load", "warm")
        )
        print(f"{name:12}{columns}{r['bytes'] / raw['bytes']:11.4f}")
    print(
        f"hashing all bytes before copying any, on one core per worker: {raw['warm'] / raw['hashed']:.2f} x raw, warm"
    )
    print(f"gridwise loads with {results['gridwise']['threads']} thread(s) per worker, raw with one")
    stall, copy = results["async"]["save"], results["memcpy"]["save"]
    print(
        f"async_save stalls {stall:.3f} s, a memcpy of the state takes {copy:.3f} s: {stall / copy:.2f} x", flush=True
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--size", type=int, default=2048, help="MiB of the large state")
    options.add_argument("--tensors", type=int, default=10_000, help="number of small tensors")
    options.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="besides raw; default: all")
    options.add_argument("--folder", type=Path, default=None, help="where to write; default: the temporary folder")
    given = options.parse_args()
    import gridwise

    for workers in given.workers:
        for kind, amount in (("large", given.size), ("small", given.tensors)):
            if not amount:
                continue
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                args = (kind, amount, given.repeat, Path(folder), given.ways)
                if workers == 1:
                    results = run(*args)
                else:
                    everyone = gridwise.launch(run, *args, workers=workers, transport="gloo")
                    results = everyone[0]
                    for name, found in results.items():
                        for what in found:
                            found[what] = max(each[name][what] for each in everyone if what in each[name])
            what = f"{amount} MiB in 16 tensors" if kind == "large" else f"{amount} tensors of 4 KiB"
            report(f"{what}, {workers} worker{'s' * (workers > 1)}", results)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
