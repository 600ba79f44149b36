"""Printing in the order of the workers."""

from __future__ import annotations

from typing import Any


def print_sequential(comm: Any, val: object) -> None:
    """Print the values of all workers, in order, on the first worker of a communicator or partition."""
    comm = getattr(comm, "_comm", comm)
    texts = comm.allgather(str(val))
    if comm.Get_rank() == 0:
        for rank, text in enumerate(texts):
            print(f"{rank}: {text}", flush=True)
