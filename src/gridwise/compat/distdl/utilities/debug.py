"""Printing, one worker after the other."""

from __future__ import annotations

from typing import Any


def print_sequential(comm: Any, val: object) -> None:
    """Print everybody's value on the first worker of a communicator or partition, in order."""
    comm = getattr(comm, "_comm", comm)
    said = comm.allgather(str(val))
    if comm.Get_rank() == 0:
        for rank, text in enumerate(said):
            print(f"{rank}: {text}", flush=True)
