"""The example of the documentation of AllSumReduce on twelve workers: `python twelve.py` is all of them.

One process imports torch and forks the others, because twelve imports take long on few cores.
"""

from __future__ import annotations

import gc
import os
import socket
import sys

import numpy as np
import torch

import gridwise
from gridwise.nn import AllSumReduce

WORKERS = 12


def worker() -> None:
    P_world = gridwise.world()
    assert P_world.size == WORKERS
    P_x_base = P_world.create_partition_inclusive(np.arange(0, 12))
    P_x = P_x_base.create_cartesian_topology_partition([2, 2, 3])
    x_local_shape = np.array([7, 5])
    reduce_dims = (1, 2)
    layer = AllSumReduce(P_x, reduce_dims)
    x = gridwise.zero_volume_tensor()
    if P_x.active:
        torch.manual_seed(P_x.rank)
        x = torch.rand(*x_local_shape)
    y = layer(x)
    first = 6 * P_x.index[0]
    parts = []
    for rank in range(first, first + 6):
        torch.manual_seed(rank)
        parts.append(torch.rand(7, 5))
    torch.testing.assert_close(y, torch.stack(parts).sum(0))
    sys.stdout.write(f"worker {P_world.rank} is right\n")  # in one piece: one pipe for all


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(WORKERS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.testing.assert_close(torch.ones(1), torch.ones(1))  # imports much at its first call
    gc.freeze()  # the children's end is then three times faster
    children = []
    for rank in range(WORKERS):
        child = os.fork()
        if child == 0:
            os.environ["RANK"] = str(rank)
            return worker()
        children.append(child)
    return sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main()
