"""Which tests `make test` runs and which `make soak`, and in which order.

Layers, models, TAGI and data are above the transports: whatever depends on the number of workers shows over MPI as it does over
gloo. So of a test that takes several numbers of workers, `make test` runs the two largest over MPI (of a model, the largest).
The primitives and what layers run on (tests/nn/primitives, tests/nn/engine) run over gloo too, on
the largest number; the rest does where there is no MPI. All other settings are for `make soak`. Tests of the transports
themselves (tests/comm, tests/checkpoint) run on all of them.

More than four workers are for `make soak` as well: a pool is as large as its largest test, and a worker takes seconds to start.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict

import pytest

# Before torch is imported: two test processes on two cores, each with threads that spin, take up to four times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: tests interrupt themselves
    signal.signal(signal.SIGINT, signal.default_int_handler)

ABOVE_TRANSPORTS = ("tests/nn/", "tests/models/", "tests/tagi/", "tests/data/")
NEAR_TRANSPORTS = ("tests/nn/primitives/", "tests/nn/engine/")
MOST_WORKERS = 4
LONG_FILES = (
    "tests/docs/",
    "tests/examples/",
    "tests/testing/",
    "tests/checkpoint/test_kill.py",
    "tests/models/test_tokens.py",
    "tests/tagi/test_sklearn.py",
)
"""Run first: the last file of a run keeps one test process busy while the other has nothing to do."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    counts: defaultdict[str, set[int]] = defaultdict(set)
    settings = [(item, getattr(item, "callspec", None)) for item in items]
    of_workers = [(item, call.params["gridwise_setting"]) for item, call in settings if call and _on_workers(call)]
    for item, (transport, count) in of_workers:
        counts[f"{transport} {_name(item)}"].add(count)
    for item, (transport, count) in of_workers:
        over_mpi, over_gloo = (sorted(counts[f"{each} {_name(item)}"]) for each in ("mpi", "gloo"))
        if count > MOST_WORKERS or not _is_short(item, transport, count, over_mpi, over_gloo):
            item.add_marker(pytest.mark.soak)
    for item in items:
        if "readonly_memmap" in item.nodeid:  # the checks of scikit-learn again, with the data in a file
            item.add_marker(pytest.mark.soak)
    items.sort(key=lambda item: not item.nodeid.startswith(LONG_FILES))


def _is_short(item: pytest.Item, transport: str, count: int, over_mpi: list[int], over_gloo: list[int]) -> bool:
    """Whether `make test` runs a test on so many workers over that transport; the lists say what else it can run on."""
    from gridwise.comm.launching.start import mpi_missing

    if not item.nodeid.startswith(ABOVE_TRANSPORTS):
        return True
    if transport == "mpi":
        return count in over_mpi[-1 if item.nodeid.startswith("tests/models/") else -2 :]
    if count not in over_mpi:
        return True
    return count == over_gloo[-1] and (item.nodeid.startswith(NEAR_TRANSPORTS) or mpi_missing() is not None)


def _on_workers(call: pytest.CallSpec2) -> bool:  # type: ignore[name-defined]
    return "gridwise_setting" in call.params


def _name(item: pytest.Item) -> str:
    """The test's name without its parameters: `tests/nn/test_x.py::test_y`."""
    return item.nodeid.partition("[")[0]
