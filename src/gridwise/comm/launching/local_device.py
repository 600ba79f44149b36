"""Which device is this worker's: that of its place among the workers of its machine, by what the launcher says.

| launcher | variable |
|---|---|
| torchrun, `gridwise run` over gloo | LOCAL_RANK |
| mpiexec of MPICH and Intel MPI | MPI_LOCALRANKID |
| mpirun of Open MPI | OMPI_COMM_WORLD_LOCAL_RANK |
| MVAPICH, Cray's PALS, Flux | MV2_COMM_WORLD_LOCAL_RANK, PALS_LOCAL_RANKID, FLUX_TASK_LOCAL_ID |
| srun | SLURM_LOCALID |

The first that is set counts: a batch script of Slurm has a SLURM_LOCALID of its own, which mpiexec and torchrun hand on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
import torch.distributed as dist

from ...errors import TransportError
from .find import launched_size

LOCAL_RANKS = (
    "LOCAL_RANK",
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
)


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The place of this worker among those that its launcher has started on this machine; 0 for a process on its own."""
    for name in LOCAL_RANKS:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    if "RANK" in environment or (launched_size() or 1) > 1 or (dist.is_available() and dist.is_initialized()):
        raise TransportError(
            "this process is one of several, but no variable tells its place among those of this machine.",
            [f"looked for {', '.join(LOCAL_RANKS)}"],
            "set LOCAL_RANK for each process, from 0 on each machine; torchrun, mpiexec and srun set theirs.",
        )
    return 0


def device() -> torch.device:
    """This worker's device, made the current one: its place on the machine modulo the visible devices; else the CPU.

    Call it first, before tensors, models or partitions are made: whatever touches CUDA earlier takes memory of device 0 for
    every worker of the machine. Nothing is sent. Where a launcher shows each worker a device of its own
    (`CUDA_VISIBLE_DEVICES`, `srun --gpus-per-task=1`), that is the one.

    Examples
    --------
    >>> device = gridwise.device()
    >>> torch.zeros(2, device=device).device.type in ("cpu", "cuda")
    True
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    found = torch.device("cuda", local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(found)
    return found
