"""The transport of this process, determined by how it was started.

| started by | recognised by | transport |
|---|---|---|
| a user's own `init_process_group` | torch.distributed is initialised | torch.distributed |
| torchrun, `gridwise.launch` | RANK, WORLD_SIZE, MASTER_ADDR | torch.distributed (gloo, and nccl for CUDA tensors) |
| mpiexec, srun | PMI, PMIx, Open MPI or Slurm variables | MPI through mpi4py |
| no launcher | none of the above | solo |

`GRIDWISE_TRANSPORT` = torch | gloo | mpi | solo overrides this; auto does not. A process that was started as one of several
never falls back to solo: if MPI does not work there, that is an error.

`current` is the one transport of this process: found at the first call, and the same object from then on. A pool's worker
replaces it for each task (`use`).
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from importlib.util import find_spec

import torch.distributed as dist

from ...errors import TransportError
from ...log import logger, set_worker
from .. import settings
from ..supervision import original_stderr
from ..supervision.excepthook import end_all_on_exception, end_mpi_job_on_exception
from ..supervision.start_timeout import waiting_for_all
from ..supervision.watch import watch
from ..transports.base import Transport
from ..transports.solo import SoloTransport
from .malloc import keep_freed_memory
from .start import family

IN_POOL = "GRIDWISE_POOL" in os.environ
"""Whether a pool has started this process. A pool supervises its workers itself."""
pool_rank = 0
"""The rank of this process in the pool."""


_current: Transport | None = None


def current() -> Transport:
    """The transport of this process; found and set up at the first call."""
    global _current
    if _current is None:
        _current = begin(find())
        _current.on_close.append(lambda: use(None))
    return _current


def use(transport: Transport | None) -> None:
    """Make `current` return `transport`; None: find one again at the next call."""
    global _current
    _current = transport


def begin(transport: Transport) -> Transport:
    """Set up this process for a new transport: its name in the log, its allocator, and its supervision."""
    set_worker(transport.rank, transport.size)
    if transport.size > 1:
        keep_freed_memory()
        if IN_POOL:
            _tell_places(transport)
        else:
            watch(transport)
            end_all_on_exception(transport)
    return transport


def _tell_places(transport: Transport) -> None:
    """Exchange the pool ranks of a new world's workers, and agree on a name for the world."""
    mine = json.dumps([pool_rank, secrets.token_hex(4)]).encode()
    said = transport.gather_bytes(mine, transport.everyone, "the start of a world")
    transport.places, names = zip(*map(json.loads, said), strict=True)
    transport.world = names[0]


def find() -> Transport:
    """A new transport, chosen by how this process was started."""
    settings.check()
    wish = _wish()
    logger.debug("transport: %s", wish)
    if wish in ("torch", "gloo", "nccl"):
        return _torch()
    if wish == "mpi":
        return _mpi()
    if wish == "solo":
        return SoloTransport()
    raise TransportError(f"`GRIDWISE_TRANSPORT` (={wish!r}) must be 'auto', 'torch', 'gloo', 'mpi' or 'solo'.")


def guard() -> None:
    """On import under a launcher: keep the original stderr; in an MPI job, also let an uncaught exception end the job."""
    if IN_POOL:
        return
    if launched_size() or "WORLD_SIZE" in os.environ:
        original_stderr.keep()
    if _wish() == "mpi" and (launched_size() or 1) > 1:
        end_mpi_job_on_exception()


def _wish() -> str:
    wish = os.environ.get("GRIDWISE_TRANSPORT", "auto").lower()
    return _guess() if wish in ("", "auto") else wish


def _guess() -> str:
    if dist.is_available() and dist.is_initialized():
        return "torch"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return "torch"
    if launched_size() is not None:
        return "mpi"
    return "solo"


def launched_size() -> int | None:
    """How many processes the launcher of MPI says it has started; None if there was none."""
    size = settings.launched_number(settings.MPI_SIZES)
    if size is None and "SLURM_PROCID" in os.environ and os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        return int(os.environ["SLURM_STEP_NUM_TASKS"])
    return size


def _torch() -> Transport:
    from ..transports.torch_distributed import start_torch

    if not dist.is_initialized():
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise TransportError(
                f"torch.distributed was asked for, but {', '.join(missing)} is not set: this process was not started "
                "by torchrun.\n  fix: torchrun --nproc-per-node 4 script.py, or gridwise run -n 4 script.py."
            )
    return start_torch()


def _mpi() -> Transport:
    expected = launched_size()
    _check_family()
    try:
        with waiting_for_all(None if IN_POOL else expected):
            from ..transports.mpi import MPITransport

            transport = MPITransport()
    except Exception as error:
        raise TransportError(
            f"this process was started as one of {expected or 'several'} MPI processes, but MPI does not work: "
            f"{error!r}",
            fix="pip install 'gridwise[mpi]' (mpi4py with MPICH), or mpi4py built for the MPI whose mpiexec you "
            "use; `gridwise doctor` shows what is found.",
        ) from error
    if expected is not None and transport.size != expected and _is_bare_srun():
        raise TransportError(
            f"srun started {expected} processes, but MPI in this process sees {transport.size}: srun has not told MPI "
            "of the others (`MpiDefault=none` in slurm.conf, or --mpi=none).",
            [_library()],
            "srun --mpi=pmi2 ... (for Open MPI, --mpi=pmix); `srun --mpi=list` shows what this Slurm offers.",
        )
    if expected is not None and transport.size != expected:
        raise TransportError(
            f"the launcher started {expected} processes, but MPI in this process sees {transport.size}: "
            "mpiexec belongs to another MPI than mpi4py.",
            [_library()],
            "use that library's own mpiexec (`gridwise run -n N` finds it), or rebuild mpi4py for this one.",
        )
    return transport


def _is_bare_srun() -> bool:
    """Whether Slurm has started this process without any of the protocols by which MPI processes find each other."""
    return "SLURM_PROCID" in os.environ and not any(name.startswith(("PMI_", "PMIX_", "PMI2_")) for name in os.environ)


def _check_family() -> None:
    """Raise if the launcher is Open MPI's and the library is not, before MPI starts: it would abort the process itself."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ or "mpi4py.MPI" in sys.modules or find_spec("mpi4py") is None:
        return
    import mpi4py

    before = mpi4py.rc.initialize, mpi4py.rc.finalize
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    try:
        from mpi4py import MPI
    finally:
        mpi4py.rc.initialize, mpi4py.rc.finalize = before
    if family(MPI.Get_library_version()) != "openmpi":
        raise TransportError(
            "this process was started by Open MPI's mpiexec, but mpi4py belongs to another MPI, which cannot start under "
            "it.",
            [_library()],
            "use that library's own mpiexec (`gridwise run -n N` finds it), or install mpi4py for Open MPI.",
        )
    MPI.Init_thread(MPI.THREAD_MULTIPLE)


def _library() -> str:
    from mpi4py import MPI

    return f"mpi4py uses {MPI.Get_library_version().splitlines()[0].strip()}"
