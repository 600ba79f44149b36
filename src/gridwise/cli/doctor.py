"""`gridwise doctor`: what is installed, what works between two workers and how fast, and how to start a job, as text.

A probe is a function that returns what it found. For one that fails the reason is printed, and the next one runs; one that
has not ended when the time is over is left behind.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import gridwise
import gridwise.testing
from gridwise.comm.launching import cluster, find, malloc, start
from gridwise.comm.launching.cores import cores
from gridwise.comm.transports.base import Transport
from gridwise.costs.machine import calibrated_file
from gridwise.models.self_check import self_check
from gridwise.planning.calibrate import calibrated, write_calibration
from gridwise.torch_internals import versions
from gridwise.torch_internals.page_pool import page_pool

PACKAGES = (
    "gridwise",
    "torch",
    "numpy",
    "mpi4py",
    "mpich",
    "openmpi",
    "impi-rt",
    "safetensors",
    "cloudpickle",
    "typer",
)
SMALL, LARGE = 8, 16 * 2**20
SECONDS = 20.0
"""How long all probes may take together, unless the user gives them more."""


def doctor(
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure how fast this machine computes and sends, for `gridwise plan`.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Where to write that, as TOML; by default where plans look for it.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1.0, help="How long it may take; what is not done then is left out.")
    ] = SECONDS,
) -> None:
    """Report what Gridwise finds on this machine, and measure an exchange between two workers over each transport."""
    if calibrate:
        machine = calibrated()
        path = output or calibrated_file()
        write_calibration(path, machine)
        print(f"{machine.as_toml()}\n{path} written")
        return
    console = Console(soft_wrap=True)
    table = Table("", "found", title="gridwise doctor", title_justify="left", show_lines=False)
    plain = not console.is_terminal
    if plain:
        print("gridwise doctor")
    deadline = time.monotonic() + seconds
    for name, probe in probes():
        text = _within(deadline, probe)
        if plain:
            print(f"{name:<26} {text}", flush=True)
        else:
            table.add_row(name, escape(text))
    if not plain:
        console.print(table)


def probes() -> Iterator[tuple[str, Callable[[], str]]]:
    """Every probe and its name, in order."""
    yield "python", lambda: f"{platform.python_version()} at {sys.executable}"
    yield "system", lambda: f"{platform.platform()}, {cores()} cores for this process"
    yield "packages", _packages
    yield "torch", _torch
    yield "recording", _recording
    yield "MPI library", _mpi_library
    yield "mpiexec", _mpiexec
    yield "Slurm", slurm
    yield "torch.distributed", _torch_distributed
    yield "GPUs", _gpus
    yield "devices per worker", lambda: devices_per_worker(torch.cuda.device_count())
    yield "allocator", _allocator
    yield "memory of tiles", _memory_of_tiles
    yield "settings", _settings
    yield "started as", lambda: f"one of {find.launched_size() or os.environ.get('WORLD_SIZE', 1)}"
    yield "auto, 2 workers", lambda: start.choose("auto", 2)
    for transport in ("mpi", "gloo"):
        yield f"2 workers over {transport}", partial(_two_workers, transport)
    yield "to start a job", command_to_use


def _within(deadline: float, probe: Callable[[], str]) -> str:
    """What a probe finds before the deadline; a worker that it has started ends with this process."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_tried(probe)), daemon=True)
    thread.start()
    thread.join(max(0.5, deadline - time.monotonic()))
    return found[0] if found else "left out, it takes longer: gridwise doctor --seconds 120 waits for it"


def _tried(probe: Callable[[], str]) -> str:
    try:
        return probe()
    except Exception as error:  # a failing probe must not stop the others
        lines = str(error).strip().splitlines() or [""]
        return f"FAILED: {type(error).__name__}: {' '.join(line.strip() for line in lines[:4])}"


def _packages() -> str:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def _torch() -> str:
    known = "tested" if versions.is_tested(versions.this_version()) else "not tested"
    return f"{versions.this_version()}, {known} with this version of Gridwise; tested: {', '.join(versions.TESTED)}"


def _recording() -> str:
    if problems := self_check():
        raise RuntimeError(f"models cannot be recorded with this torch: {'; '.join(problems)}")
    return "models are recorded right (self-check)"


def _mpi_library() -> str:
    """Asked in another process, because loading MPI starts it."""
    if importlib.util.find_spec("mpi4py") is None:
        return "none, and none is needed: gloo connects the workers (pip install 'gridwise[mpi]' brings one)"
    code = "from mpi4py import MPI; print(MPI.Get_library_version())"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, env=start.clean(os.environ)
    )
    lines = (answer.stdout or answer.stderr).strip().splitlines()
    if answer.returncode:
        return f"FAILED: {lines[-1] if lines else start.spelt_exit(answer.returncode)}"
    return " ".join(lines[0].split())


def _mpiexec() -> str:
    if importlib.util.find_spec("mpi4py") is None:
        return "not asked for without mpi4py"
    return start.mpiexec() or "none found beside the interpreter or on PATH that fits mpi4py"


def _torch_distributed() -> str:
    if not torch.distributed.is_available():
        return "not built into this torch"
    names = [name for name in ("gloo", "nccl", "mpi") if getattr(torch.distributed, f"is_{name}_available")()]
    return ", ".join(names)


def _gpus() -> str:
    if not torch.cuda.is_available():
        return f"none (torch built for {'CUDA ' + torch.version.cuda if torch.version.cuda else 'the CPU'})"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{len(names)}: {', '.join(sorted(set(names)))}, CUDA {torch.version.cuda}"


def devices_per_worker(devices: int) -> str:
    """Which devices the workers on this machine compute on."""
    if not devices:
        return "none: workers compute on the CPU"
    if devices == 1:
        return "all workers of this machine share the one device; nccl needs one each, so CUDA IPC is used"
    return f"one each for up to {devices} workers, worker i takes device i modulo {devices}; more workers share devices"


def slurm() -> str:
    """Whether jobs are started by Slurm here, and through which plug-in srun connects the MPI processes."""
    if shutil.which("srun") is None:
        return "srun is not on PATH"
    listed = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, timeout=SECONDS)
    if listed.returncode:
        return f"srun is installed, but does not work here: {(listed.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    plugins = sorted(
        {word.strip(",") for word in (listed.stdout + listed.stderr).split()} & {"pmi2", "pmix", "cray_shasta"}
    )
    family = start.mpi_family()
    job = os.environ.get("SLURM_JOB_ID")
    inside = f"inside job {job}" if job else "outside of a job"
    if family is None:
        return f"{inside}, plug-ins {', '.join(plugins) or 'none'}; without a working mpi4py: srun ... torchrun"
    wanted = cluster.plugin_for(family)
    fits = "" if wanted in plugins else ", which is not there: srun --ntasks-per-node 1 ... torchrun works without"
    return f"{inside}, plug-ins {', '.join(plugins) or 'none'}; {start.spelt_family(family)} needs --mpi={wanted}{fits}"


def command_to_use() -> str:
    """The command line that starts a job here."""
    job_nodes = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES")
    workers = torch.cuda.device_count() or cores()
    if job_nodes:
        place = cluster.Cluster(int(job_nodes), workers)
        return cluster.lines_for(place, "auto" if start.mpi_family() else "gloo", ["script.py"])[-1].command
    chosen = start.choose("auto", workers)
    return f"gridwise run -n {workers} script.py, which takes {chosen}; for a cluster gridwise run --nodes N prints the lines"


def _allocator() -> str:
    if malloc.keep_freed_memory():
        return "glibc's, set to keep freed memory in workers (GRIDWISE_MALLOC=off leaves it alone)"
    return "left alone (GRIDWISE_MALLOC=off, or not glibc)"


def _memory_of_tiles() -> str:
    with page_pool(1) as is_there:
        return (
            "used again on the CPU" if is_there else "fresh each time on the CPU, which is slower: no C++ compiler here"
        )


def _settings() -> str:
    names = sorted(name for name in os.environ if name.startswith(("GRIDWISE_", "OMP_NUM_THREADS", "MPIR_CVAR_")))
    return ", ".join(f"{name}={os.environ[name]}" for name in names) or "no variables set"


def _two_workers(transport: str) -> str:
    missing = start.mpi_missing() if transport == "mpi" else None
    if missing:
        return f"not possible: {missing}"
    began = time.perf_counter()
    first, _ = gridwise.launch(_measure_exchange, workers=2, transport=transport, timeout=SECONDS)
    return f"{first}, started in {time.perf_counter() - began:.1f} s"


def _measure_exchange() -> str:
    """Runs on two workers: a checked exchange, its speed, and an adjoint test."""
    transport = find.current()
    small, large = _round_trip(SMALL, 200), _round_trip(LARGE, 10)
    total = transport.all_sum(torch.tensor([1.0 + transport.rank], device="cpu"), transport.everyone)
    if total.item() != 3.0:
        raise RuntimeError(f"1 + 2 over two workers is {total.item()}")
    speed = f"latency {small * 1e6:.0f} us, bandwidth {LARGE / large / 1e9:.2f} GB/s each way"
    return f"{speed}, {message_paths(transport)}, {_adjoint_test()}"


def message_paths(transport: Transport) -> str:
    """How messages travel between two workers of this machine, on the host and between devices."""
    shared = (
        "through shared memory" if transport.node is not None else f"not through shared memory, by {transport.name}"
    )
    if not torch.cuda.is_available():
        return f"messages {shared}"
    _exchange(transport, torch.full((1024,), float(transport.rank), device="cuda"))
    way = "by nccl" if transport.carries_cuda else "by CUDA IPC" if transport.node is not None else "through the host"
    return f"messages {shared}, between devices {way}"


def _round_trip(size: int, repeats: int) -> float:
    """Seconds for one exchange of `size` bytes in both directions; raises if what arrives is not what was sent."""
    transport = find.current()
    sent = torch.full((size,), transport.rank, dtype=torch.uint8, device="cpu")
    arrived = _exchange(transport, sent)
    peer = 1 - transport.rank
    transport.barrier()
    began = time.perf_counter()
    for _ in range(repeats):
        transport.exchange([(peer, sent)], [(peer, arrived)], "the doctor's exchange")
    return (time.perf_counter() - began) / repeats


def _exchange(transport: Transport, sent: torch.Tensor) -> torch.Tensor:
    """What the peer sends in return for `sent`; every element must be the sender's rank."""
    peer, arrived = 1 - transport.rank, torch.empty_like(sent)
    transport.exchange([(peer, sent)], [(peer, arrived)], "the doctor's exchange")
    if not bool((arrived == peer).all()):
        raise RuntimeError(f"an exchange of {sent.nbytes} bytes on {sent.device} brought something else than was sent")
    return arrived


def _adjoint_test() -> str:
    world = gridwise.world()
    layer = gridwise.nn.HaloExchange(world.create_cartesian_topology_partition([world.size]), [(1, 1)])
    error = gridwise.testing.check_adjoint(layer, torch.zeros(1000, device="cpu"))
    return f"adjoint test passed (relative error {error:.0e})"
