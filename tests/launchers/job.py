"""What every launcher starts: a sum over all workers; with a number, that worker is then killed, and the others go on."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

import torch

import gridwise

world = gridwise.world()
P_x = world.create_cartesian_topology_partition([world.size])
sum_of = gridwise.nn.AllSumReduce(P_x, axes_reduce=(0,))
total = sum_of(torch.full((3,), world.rank + 1.0))[0].item()
line = f"<{world.transport.name} {world.rank} of {world.size} on {socket.gethostname()}: {total:g}>\n"
os.write(1, line.encode())  # in one piece: many write to one pipe
if len(sys.argv) > 1:
    if world.rank == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(6000):
        sum_of(torch.ones(3))
        time.sleep(0.01)
    os.write(1, b"<went on as if nothing had happened>\n")
