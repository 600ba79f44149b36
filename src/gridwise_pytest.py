"""Gridwise's pytest plugin: tests whose bodies run on several workers at once.

    from gridwise.testing import workers

    @workers(1, 2, 3, 4)
    def test_sum():
        world = gridwise.world()
        ...

becomes `test_sum[mpi-1]` ... `test_sum[gloo-4]`. Worker processes are started once per test run and transport, as many as
the largest test needs. A test that hangs fails after `gridwise_timeout` seconds (an option of pytest's ini file; 60) with
every worker's stack, and the next one gets new workers.

`pytest --gridwise-device cuda` runs the same bodies with their tensors on that device, with the same random numbers.

This module sits beside the package, not in it: pytest imports the plugins of all installed distributions whenever it
starts, and importing `gridwise` imports torch. `gridwise.testing.pytest_plugin` does the work, once a test asks for workers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gridwise.comm.launching.pool import Pool

ORIGINAL_STDERR = os.dup(2)
"""Standard error as it was before pytest began to capture it: see `gridwise.comm.supervision.original_stderr`."""
MARK = "gridwise_workers"
POOLS: pytest.StashKey[dict[str, Pool]] = pytest.StashKey()
SIZES: pytest.StashKey[dict[str, int]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gridwise-device", default="cpu", help="where the tensors of tests on workers are made")
    parser.addini("gridwise_timeout", "seconds after which a test on workers counts as hanging", default="60")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(counts, transports): run the body on so many workers; see `workers`.")
    config.stash[POOLS] = {}
    config.stash[SIZES] = {}


def pytest_unconfigure(config: pytest.Config) -> None:
    for pool in config.stash.get(POOLS, {}).values():
        pool.close()


@pytest.fixture
def gridwise_setting(request: pytest.FixtureRequest) -> tuple[str, int]:
    """The transport and the number of workers that this test runs on."""
    transport, count = request.param
    return transport, count


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    settings = [(transport, count) for transport in mark.kwargs["transports"] for count in mark.args]
    if gridwise_setting.__name__ not in metafunc.fixturenames:
        metafunc.fixturenames.append(gridwise_setting.__name__)
    ids = [f"{transport}-{count}" for transport, count in settings]
    metafunc.parametrize(gridwise_setting.__name__, settings, ids=ids, indirect=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    sizes = session.config.stash[SIZES]
    for item in session.items:
        if setting := _setting(item):
            transport, count = setting
            sizes[transport] = max(sizes.get(transport, 1), count)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    setting = _setting(pyfuncitem)
    if setting is None:
        return None
    __tracebackhide__ = True
    from gridwise.testing.pytest_plugin import call_on_workers

    transport, count = setting
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names if name != gridwise_setting.__name__}
    if gridwise_setting.__name__ in names:
        arguments[gridwise_setting.__name__] = setting
    pools, size = pyfuncitem.config.stash[POOLS], pyfuncitem.config.stash[SIZES][transport]
    seconds = float(pyfuncitem.config.getini("gridwise_timeout"))
    device = pyfuncitem.config.getoption("--gridwise-device")
    call_on_workers(pyfuncitem.obj, arguments, device, transport, count, seconds, pools, size)
    return True


def _setting(item: pytest.Item) -> tuple[str, int] | None:
    callspec = getattr(item, "callspec", None)
    if callspec is None or item.get_closest_marker(MARK) is None:
        return None
    found: tuple[str, int] = callspec.params[gridwise_setting.__name__]
    return found
