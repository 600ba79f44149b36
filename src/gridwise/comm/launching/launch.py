"""Run a function on local workers, from a script, a prompt or a notebook, and get their results back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .pool import Pool


def launch(
    fn: Callable[..., Any],
    *args: Any,
    workers: int = 4,
    transport: str = "auto",
    timeout: float | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Call `fn(*args, **kwargs)` on `workers` fresh processes of this machine, and return the list of their results.

    Inside `fn`, `gridwise.world()` is the world of these workers. Functions, arguments and results travel by
    cloudpickle: lambdas, closures and what was defined in a notebook will do.

    Parameters
    ----------
    workers : how many processes. Each gets its share of the cores as OMP_NUM_THREADS unless that is set.
    transport : 'mpi', 'gloo', or 'auto': MPI if it works here and every worker has a core, else gloo.
    timeout : seconds; afterwards the workers are ended and `CommTimeout` tells what each of them was doing.

    Raises
    ------
    What a worker raised, with the worker's name and traceback as a note; `WorkerFailed` if that cannot be brought back;
    `WorkerDied` if a worker's process is gone. In every case all workers have ended.

    Examples
    --------
    >>> launch(lambda: gridwise.world().rank, workers=3)  # doctest: +SKIP
    [0, 1, 2]

    Each call starts new processes, which import torch: seconds. For many calls keep a `Pool`.
    """
    with Pool(workers, transport) as pool:
        return pool.run(fn, *args, timeout=timeout, **kwargs)
