"""The device of this worker, chosen by its place among the workers of its machine, which the launcher passes on.

| launcher | variable |
|---|---|
| torchrun, `gridwise run` over gloo | LOCAL_RANK |
| mpiexec of MPICH and Intel MPI | MPI_LOCALRANKID |
| mpirun of Open MPI | OMPI_COMM_WORLD_LOCAL_RANK |
| MVAPICH, Cray's PALS, Flux | MV2_COMM_WORLD_LOCAL_RANK, PALS_LOCAL_RANKID, FLUX_TASK_LOCAL_ID |
| srun | SLURM_LOCALID |

The first one set is used, in this order: a Slurm batch script has its own SLURM_LOCALID, which mpiexec and torchrun pass on.
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
    """The place of this worker among those its launcher has started on this machine; 0 for a single process."""
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
    """This worker's device, made current: its local rank modulo the number of visible devices; the CPU without CUDA.

    Call it first, before making tensors, models or partitions: anything that touches CUDA earlier takes memory on device 0
    for every worker of the machine. Nothing is sent. Where a launcher makes only one device visible to each worker
    (`CUDA_VISIBLE_DEVICES`, `srun --gpus-per-task=1`), that one is used.

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
