"""Running a function on local workers, from a script, a prompt or a notebook."""

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
    """Call `fn(*args, **kwargs)` in `workers` new processes on this machine, and return the list of their results.

    Inside `fn`, `gridwise.world()` is the world of these workers. Functions, arguments and results are sent with
    cloudpickle, so lambdas, closures and definitions from a notebook work.

    Parameters
    ----------
    workers : the number of processes. Each gets its share of the cores as OMP_NUM_THREADS unless that is set.
    transport : 'mpi', 'gloo', or 'auto': MPI if it works here and every worker has a core, else gloo.
    timeout : seconds, after which the workers are killed and `CommTimeout` reports what each of them was doing.

    Raises
    ------
    What a worker raised, with the worker's name and traceback as a note; `WorkerFailed` if that cannot be sent back;
    `WorkerDied` if a worker's process is gone. In every case all workers have ended.

    Examples
    --------
    >>> launch(lambda: gridwise.world().rank, workers=3)  # doctest: +SKIP
    [0, 1, 2]

    Each call starts new processes, which import torch; that takes seconds: let one call do much.
    """
    with Pool(workers, transport) as pool:
        return pool.run(fn, *args, timeout=timeout, **kwargs)
