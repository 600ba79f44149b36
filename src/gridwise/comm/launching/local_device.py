"""This worker's device: the one at its place among the workers of its machine, which the launcher tells (`settings`)."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
import torch.distributed as dist

from ...errors import TransportError
from ..settings import LOCAL_RANKS, launched_number
from .find import launched_size


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The place of this worker among those that its launcher has started on this machine; 0 for a process on its own."""
    place = launched_number(LOCAL_RANKS, environment)
    if place is not None:
        return place
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
