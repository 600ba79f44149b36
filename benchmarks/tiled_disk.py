"""`gridwise.tiled` with a store on a disk that is larger than the memory it may use, beside a store in memory.

    python benchmarks/tiled_disk.py [--rounds 2] [--size 240] [--store FOLDER]

A 3-D U-Net, forward, on one core, by the same tiles. Each run is a process. On the disk, the kernel gives it so much data and
no more (RLIMIT_DATA), and of its files so many pages stay in memory and no more: this program asks the kernel how many there
are (cachestat), has them written and dropped, and stops the process while there are too many, as the kernel does with a
process that writes faster than the disk. So what is read again comes from the disk. Seconds are those of the clock, the least
of the rounds, in turn; the disk's own speed is that of one file in order, written to the end (fdatasync) and read from the
disk.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import gridwise
from run import NOTHING_HERE
from tiled import peak
from tiled_gpu import UNet3d

MIB = 2**20
WIDTH = 16
MEMORY = 256 * MIB
"""What `tiled` may use."""
DATA, PAGES = 768 * MIB, 256 * MIB
"""What the kernel gives to the process on the disk: data of its own, among them torch's, the input and the result; and pages of
files."""
CACHESTAT = 451
"""The number of the system call, from Linux 6.5 on."""
GOAL = 1.5


@dataclass
class Run:
    """One call in a process of its own: seconds of the clock and of the core, bytes."""

    seconds: float
    core: float
    resident: int
    """The most that was resident of the process, torch and the input among it."""
    stored: int
    written: int
    read: int
    """What has gone to the disk, and what has come from it."""
    sample: Tensor
    """Some of the result."""
    pages: int = 0
    """The most bytes of its files that were in memory."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--size", type=int, default=240)
    parser.add_argument("--store", default=tempfile.gettempdir(), help="a folder on the disk")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        torch.save(called(options.size, options.store, options.run == "disk"), options.result)
        return
    with tempfile.TemporaryFile(dir=options.store) as file:
        if in_memory(file.fileno()) is None:
            print("the kernel cannot tell which pages of a file are in memory (cachestat, from Linux 6.5 on)")
            sys.exit(NOTHING_HERE)
    runs: dict[str, list[Run]] = {"memory": [], "disk": []}
    speeds = []
    for _ in range(options.rounds):
        speeds.append(speed_of_disk(Path(options.store)))
        for name, done in runs.items():
            done.append(in_a_process(name, options.size, options.store))
    report(options.size, {name: min(done, key=lambda run: run.seconds) for name, done in runs.items()}, speeds)


# A run


def called(size: int, store: str, limited: bool) -> dict[str, Any]:
    """In a process of its own: what a call costs there."""
    if limited:
        resource.setrlimit(resource.RLIMIT_DATA, (DATA, DATA))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, model = torch.randn(1, 1, size, size, size), UNet3d(WIDTH).eval()
    big = gridwise.tiled(model, memory=MEMORY, store=store, progress=False)
    with torch.no_grad():
        stored = big.plan(x).stored_peak
        before, began, core = moved(), time.perf_counter(), time.process_time()
        y = big(x)
        seconds, core = time.perf_counter() - began, time.process_time() - core
    written, read = (now - then for now, then in zip(moved(), before, strict=True))
    sample = y[..., ::9, ::9, ::9].clone()
    return {"seconds": seconds, "core": core, "resident": peak(), "stored": stored, "written": written, "read": read,
            "sample": sample}  # fmt: skip


def moved() -> tuple[int, int]:
    """Bytes that this process has sent to disks, without those that were deleted before they got there, and read from them."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    of = {name: int(number) for name, _, number in (line.partition(": ") for line in lines)}
    return of["write_bytes"] - of["cancelled_write_bytes"], of["read_bytes"]


def in_a_process(name: str, size: int, store: str) -> Run:
    at = "memory" if name == "memory" else store
    command = [sys.executable, __file__, "--run", name, "--size", str(size), "--store", at]
    with tempfile.NamedTemporaryFile() as result:
        with subprocess.Popen([*command, "--result", result.name]) as process, ended(process):
            most = limited_pages(process, Path(store), PAGES if name == "disk" else None)
        if process.returncode:
            sys.exit(f"{name}: exit status {process.returncode}")
        return Run(**torch.load(result.name), pages=most)


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Nothing is left of a process, stopped or not, if this program is interrupted."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


# Pages of files in memory


def limited_pages(process: subprocess.Popen[bytes], folder: Path, limit: int | None) -> int:
    """Until a process ends, keep pages of the files in memory that it has in a folder below a limit; the most there were."""
    most, opened = 0, {}
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            opened = files_of(process.pid, folder, opened)
        most = max(most, sum(in_memory(file) or 0 for file in opened.values()))
        if limit is not None:
            drop(process, list(opened.values()), limit)
        time.sleep(0.01)
    files_of(None, folder, opened)
    return most


def files_of(pid: int | None, folder: Path, known: dict[str, int]) -> dict[str, int]:
    """The files without names that a process has in a folder, opened here too; files that it has closed are closed."""
    there = {}
    for path in Path(f"/proc/{pid}/fd").iterdir() if pid else ():
        with contextlib.suppress(FileNotFoundError):
            name = str(path.readlink())
            if name.startswith(f"{folder.resolve()}/") and name.endswith("(deleted)") and name not in there:
                there[name] = known[name] if name in known else os.open(path, os.O_RDWR)
    for name in known.keys() - there.keys():
        os.close(known[name])
    return there


def drop(process: subprocess.Popen[bytes], files: list[int], limit: int) -> None:
    """Have pages written and dropped from half the limit on; beyond it the process waits."""
    held = sum(in_memory(file) or 0 for file in files)
    if held > limit // 2:
        for file in files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # drops what is written, and begins to write the rest
    if sum(in_memory(file) or 0 for file in files) > limit:
        process.send_signal(signal.SIGSTOP)
        for file in files:
            os.fdatasync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        process.send_signal(signal.SIGCONT)


def in_memory(file: int) -> int | None:
    """Bytes of a file that are in memory; None if the kernel cannot tell."""
    whole, counts = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    if ctypes.CDLL(None).syscall(CACHESTAT, file, whole, counts, 0):
        return None
    return counts[0] * resource.getpagesize()


def speed_of_disk(folder: Path, size: int = 1024 * MIB) -> tuple[float, float]:
    """Bytes in a second that the disk writes and reads, in order."""
    part = os.urandom(4 * MIB)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        began = time.perf_counter()
        for _ in range(0, size, len(part)):
            file.write(part)
        os.fdatasync(file.fileno())
        written = time.perf_counter()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        dropped = time.perf_counter()
        while file.read(len(part)):
            pass
        return size / (written - began), size / (time.perf_counter() - dropped)


# The table


def report(size: int, best: dict[str, Run], speeds: list[tuple[float, float]]) -> None:
    table = Table(
        title=f"3-D U-Net ({size}^3), forward, memory={MEMORY // MIB} MiB, one core; MiB, and seconds of the clock"
    )
    columns = ("store", "stored", "may use", "resident", "pages of files", "written", "read", "core s", "seconds", "ratio",
               "goal", "differs")  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "store" else "right")
    right = best["memory"]
    for name, run in best.items():
        difference = float((run.sample - right.sample).abs().max() / right.sample.abs().max())
        sizes = (run.resident, run.pages, run.written, run.read)
        table.add_row(
            name, f"{run.stored / MIB:,.0f}", f"{(DATA + PAGES) / MIB:,.0f}" if name == "disk" else "any",
            *(f"{size / MIB:,.0f}" for size in sizes), f"{run.core:.1f}", f"{run.seconds:.1f}",
            f"{run.seconds / right.seconds:.2f}", str(GOAL) if name == "disk" else "", f"{difference:.0e}",
        )  # fmt: skip
    Console(width=140).print(table)
    write, read = (max(column) / MIB for column in zip(*speeds, strict=True))
    print(f"the disk itself: writes {write:,.0f} MiB/s, reads {read:,.0f} MiB/s")


if __name__ == "__main__":
    main()
