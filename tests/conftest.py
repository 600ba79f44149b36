"""Which of the tests on several workers `make test` runs, and which `make soak`.

Layers, models and TAGI are above the transports: whatever depends on the number of workers shows over MPI as it does over
gloo. So their tests run on every number of workers over MPI (those of models on three and more, where a test takes so many),
and over gloo on the largest; the other numbers are for `make soak`. Tests of the transports themselves (tests/comm,
tests/checkpoint) run on all of them.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

ABOVE_TRANSPORTS = ("tests/nn/", "tests/models/", "tests/tagi/")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    counts: defaultdict[str, set[int]] = defaultdict(set)
    settings = [(item, getattr(item, "callspec", None)) for item in items]
    of_workers = [(item, call.params["gridwise_setting"]) for item, call in settings if call and _on_workers(call)]
    for item, (transport, count) in of_workers:
        counts[f"{transport} {_name(item)}"].add(count)
    for item, (transport, count) in of_workers:
        over_mpi = counts[f"mpi {_name(item)}"]
        fewer = transport == "gloo" and count in over_mpi and count < max(counts[f"gloo {_name(item)}"])
        few = transport == "mpi" and count < 3 <= max(over_mpi) and item.nodeid.startswith("tests/models/")
        if few or (fewer and item.nodeid.startswith(ABOVE_TRANSPORTS)):
            item.add_marker(pytest.mark.soak)
    for item in items:
        if "readonly_memmap" in item.nodeid:  # the checks of scikit-learn again, with the data in a file
            item.add_marker(pytest.mark.soak)


def _on_workers(call: pytest.CallSpec2) -> bool:  # type: ignore[name-defined]
    return "gridwise_setting" in call.params


def _name(item: pytest.Item) -> str:
    """The test's name without its parameters: `tests/nn/test_x.py::test_y`."""
    return item.nodeid.partition("[")[0]
