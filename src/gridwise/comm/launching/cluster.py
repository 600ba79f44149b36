"""Command lines that start a job on several machines, for torchrun, mpiexec and srun. They are text; nothing is started.

Those for MPI depend on the library that mpi4py uses: Hydra and Open MPI name hosts differently, and Slurm connects the
workers through PMI-2 for MPICH, and through PMIx for Open MPI.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import PartitionError
from .start import mpi_family, mpi_missing, mpiexec, spelt_family

PORT = 29500
"""The port at which torchrun's first node listens; torch's own default."""

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


class CommandLine(NamedTuple):
    """A command line, and a remark on when to use it."""

    remark: str
    command: str


@dataclass(frozen=True)
class Cluster:
    """`count` machines with `per_node` workers each, and their names if known."""

    count: int
    per_node: int
    names: tuple[str, ...] = ()

    @property
    def workers(self) -> int:
        return self.count * self.per_node

    @property
    def first(self) -> str:
        return self.names[0] if self.names else "FIRST_NODE"


def cluster_of(nodes: str, workers: int) -> Cluster:
    """The cluster that `--nodes` describes, as a number or as names, with `workers` in total."""
    names = tuple(name.strip() for name in nodes.split(","))
    if len(names) == 1 and names[0].isdigit():
        count, names = int(names[0]), ()
    else:
        count = len(names)
    if (
        count < 1
        or not all(names)
        or len(set(names)) != len(names)
        or any(set(name) & set(" []'\"$;|&:") for name in names)
    ):
        raise PartitionError(
            f"`--nodes` (={nodes!r}) must be a number of machines, or their names.", fix="--nodes 4, --nodes a,b"
        )
    if workers % count:
        raise PartitionError(
            f"{workers} workers cannot be shared out evenly over {count} machines.",
            fix=f"-n {max(1, workers // count) * count}, or another number of machines.",
        )
    return Cluster(count, workers // count, names)


def lines_for(cluster: Cluster, transport: str, script: Sequence[str]) -> list[CommandLine]:
    """The command lines that start `script` on the cluster over 'mpi', 'gloo', or both ('auto')."""
    if transport not in ("auto", "mpi", "gloo"):
        raise PartitionError(f"`transport` (={transport!r}) must be 'auto', 'mpi' or 'gloo' to start workers.")
    lines = []
    if transport in ("auto", "gloo"):
        lines += _torchrun(cluster, script)
    if transport in ("auto", "mpi"):
        lines += _mpi(cluster, script)
    return lines


def _torchrun(cluster: Cluster, script: Sequence[str]) -> list[CommandLine]:
    size = ["--nnodes", str(cluster.count), "--nproc-per-node", str(cluster.per_node)]
    meet = ["--master-addr", cluster.first, "--master-port", str(PORT)]
    numbers = [str(number) for number in range(cluster.count)] if cluster.names else ["$NUMBER"]
    lines = []
    for number in numbers:
        command = shlex.join([*TORCHRUN, *size, "--node-rank", "NUMBER", *meet, *script]).replace("NUMBER", number, 1)
        where = (
            f"on {cluster.names[int(number)]}"
            if cluster.names
            else f"on each machine, NUMBER from 0 to {cluster.count - 1}"
        )
        lines.append(CommandLine(f"torchrun, {where}", command))
    found = "--rdzv-endpoint $(scontrol show hostnames | head -n 1)"
    slurm = ["srun", *_slurm_nodes(cluster), "--ntasks-per-node", "1", *TORCHRUN, *size, "--rdzv-backend", "c10d"]
    meet_there = f'--rdzv-id "$SLURM_JOB_ID" {found}:{PORT}'
    lines.append(CommandLine("Slurm, with torchrun", f"{shlex.join(slurm)} {meet_there} {shlex.join(script)}"))
    return lines


def _mpi(cluster: Cluster, script: Sequence[str]) -> list[CommandLine]:
    missing = mpi_missing()
    family = mpi_family()
    if family is None:
        return [CommandLine(f"MPI is not possible here: {missing}", "")]
    per_node, workers = str(cluster.per_node), str(cluster.workers)
    python = [sys.executable, *script]
    if family == "openmpi":
        where = ["--host", ",".join(f"{name}:{per_node}" for name in cluster.names)]
        where = where if cluster.names else ["--hostfile", "HOSTFILE"]
        command = [mpiexec() or "mpirun", *where, "--map-by", f"ppr:{per_node}:node", "-n", workers, *python]
    else:
        where = ["-hosts", ",".join(cluster.names)] if cluster.names else ["-f", "HOSTFILE"]
        command = [mpiexec() or "mpiexec", *where, "-ppn", per_node, "-n", workers, *python]
    plugin = plugin_for(family)
    slurm = ["srun", *_slurm_nodes(cluster), "--ntasks-per-node", per_node, f"--mpi={plugin}", *python]
    name = spelt_family(family)
    return [
        CommandLine(f"{name}'s launcher", shlex.join(command)),
        CommandLine(f"Slurm, with {name}", shlex.join(slurm)),
    ]


def plugin_for(family: str) -> str:
    """The Slurm plug-in (`--mpi=`) through which workers of this MPI family find each other."""
    return "pmix" if family == "openmpi" else "pmi2"


def _slurm_nodes(cluster: Cluster) -> list[str]:
    names = ["--nodelist", ",".join(cluster.names)] if cluster.names else []
    return ["--nodes", str(cluster.count), *names]
