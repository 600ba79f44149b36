"""What the environment says: the variables `GRIDWISE_...`, where a meaningless word is an error, and those that launchers set.

| launcher | rank | rank on this machine |
|---|---|---|
| torchrun, `gridwise run` over gloo | RANK | LOCAL_RANK |
| mpiexec of MPICH and Intel MPI | PMI_RANK | MPI_LOCALRANKID |
| mpirun of Open MPI | OMPI_COMM_WORLD_RANK | OMPI_COMM_WORLD_LOCAL_RANK |
| MVAPICH | MV2_COMM_WORLD_RANK | MV2_COMM_WORLD_LOCAL_RANK |
| Cray's PALS, Flux | PMIX_RANK, PMI_RANK | PALS_LOCAL_RANKID, FLUX_TASK_LOCAL_ID |
| srun | SLURM_PROCID | SLURM_LOCALID |

The first that is set counts: a batch script of Slurm has its own SLURM_PROCID and SLURM_LOCALID, and mpiexec and torchrun pass
them on.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence

from ..errors import PartitionError

SWITCHES = ("GRIDWISE_WATCH", "GRIDWISE_SHARED_MEMORY", "GRIDWISE_MALLOC")
"""Those of this room that are on unless they are off."""
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
LOCAL_RANKS = (
    "LOCAL_RANK",
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
)
MPI_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS")


def launched_number(names: Sequence[str], environment: Mapping[str, str] = os.environ) -> int | None:
    """The number in the first of these variables that holds one; None if none does."""
    texts = (environment.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isascii() and text.isdigit()), None)


def is_on(variable: str, default: str = "on", environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a switch is on."""
    text = environment.get(variable, default)
    if text.lower() not in ("on", "off"):
        raise PartitionError(f"`{variable}` (={text!r}) must be 'on' or 'off'.", fix=f"unset, it is {default}.")
    return text.lower() == "on"


def check(environment: Mapping[str, str] = os.environ) -> None:
    """Raise on invalid values, before any worker waits for another."""
    timeout(environment)
    for variable in SWITCHES:
        is_on(variable, environment=environment)


def grids_of(text: str, name: str) -> list[tuple[int, ...]]:
    """The shapes in a list as 1x1x2x2,1x1x2x1; an error calls the list `name`."""
    parts = [part.strip().split("x") for part in text.split(",")]
    are_numbers = all(extent.isascii() and extent.isdigit() and int(extent) for part in parts for extent in part)
    is_meant_as_one = len(parts) > 1 and max(map(len, parts)) == 1  # 1,1,2,2
    if not are_numbers or is_meant_as_one or len(set(map(len, parts))) > 1:
        raise PartitionError(
            f"{name} (={text!r}) is no grid as 1x1x2x2, nor a list as 1x1x2x2,1x1x2x1 of grids with as many axes."
        )
    return [tuple(map(int, part)) for part in parts]


def grid(workers: int, environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """The first grid of `GRIDWISE_GRID` that has as many places as there are workers: on which the job was started."""
    text = environment.get("GRIDWISE_GRID", "")
    if not text:
        raise PartitionError(
            "no grid was given, here or at the start.",
            fix="world().grid(1, 1, 2, 2), or start with `gridwise run --grids 1x1x2x2 script.py`.",
        )
    for shape in grids_of(text, "`GRIDWISE_GRID`"):
        if math.prod(shape) == workers:
            return shape
    raise PartitionError(
        f"`GRIDWISE_GRID` (={text!r}) has no grid for the {workers} worker{'s' * (workers > 1)} that there are.",
        fix="add one, or start as many workers as one of its grids has places; `gridwise run --grids` does that.",
    )


def count(variable: str, environment: Mapping[str, str] = os.environ) -> int:
    """The value of a variable as a whole number; 0 if it is unset."""
    text = environment.get(variable, "0")
    if not (text.isascii() and text.isdigit()):
        raise PartitionError(f"`{variable}` (={text!r}) must be a whole number.", fix="unset, it is 0.")
    return int(text)


def timeout(environment: Mapping[str, str] = os.environ) -> float:
    """`GRIDWISE_TIMEOUT` in seconds."""
    text = environment.get("GRIDWISE_TIMEOUT", "1800")
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise PartitionError(
        f"`GRIDWISE_TIMEOUT` (={text!r}) must be a number of seconds greater than 0, without a unit.",
        fix="for ten minutes, GRIDWISE_TIMEOUT=600; unset, it is 1800.",
    )
