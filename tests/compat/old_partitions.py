"""Partitions and blocks as scripts for DistDL make them."""

from __future__ import annotations

import numpy as np
import torch

import gridwise_compat


def partition(*shape: int):
    """As a script makes one, over the first workers of the world."""
    gridwise_compat.install()
    from distdl.backends.mpi.partition import MPIPartition
    from mpi4py import MPI

    P_world = MPIPartition(MPI.COMM_WORLD)
    P_base = P_world.create_partition_inclusive(np.arange(0, int(np.prod(shape))))
    return P_base.create_cartesian_topology_partition(shape)


def block(P, x: torch.Tensor) -> torch.Tensor:
    from distdl.utilities.slicing import assemble_slices, compute_start_index, compute_stop_index
    from distdl.utilities.torch import zero_volume_tensor

    if not P.active:
        return zero_volume_tensor(x.shape[0], dtype=x.dtype)
    ends = (f(P.shape, P.index, x.shape) for f in (compute_start_index, compute_stop_index))
    return x[assemble_slices(*ends)].clone()
