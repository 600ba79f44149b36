"""The decorator that makes a test run on several workers; `pytest_plugin` implements it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..errors import PartitionError

Test = TypeVar("Test", bound=Callable[..., Any] | type)


def workers(*counts: int, transports: Sequence[str] = ("mpi", "gloo")) -> Callable[[Test], Test]:
    """Run the decorated test function, or every test of the class, on that many workers over each of the transports.

    The body runs on every worker at once, inside a world of that size: use it to test a layer of your own::

        @workers(1, 2, 4)
        @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
        def test_my_layer(dtype):
            P = gridwise.world().create_cartesian_topology_partition(...)
            gridwise.testing.check_adjoint(MyLayer(P), ...)

    It becomes `test_my_layer[mpi-1-dtype0]` and so on. MPI tests are skipped where MPI cannot be started. Arguments and
    fixture values are pickled on the way; the test fails with the first failing worker's traceback.

    Parameters
    ----------
    *counts : numbers of workers; the test runs on each of them
    transports : 'mpi', 'gloo' or both

    Examples
    --------
    >>> @gridwise.testing.workers(1, 2, 4, transports=('gloo',))
    ... def test_my_layer():
    ...     assert gridwise.world().size in (1, 2, 4)
    """
    import pytest

    if not counts or any(count < 1 for count in counts):
        raise PartitionError(f"`workers` {counts} needs numbers of workers, each 1 or more.")
    if not transports or set(transports) - {"mpi", "gloo"}:
        raise PartitionError(f"`transports` (={tuple(transports)}) must be 'mpi', 'gloo' or both.")
    return pytest.mark.gridwise_workers(*counts, transports=tuple(transports))
