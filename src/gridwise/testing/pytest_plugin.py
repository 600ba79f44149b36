"""A pytest plugin: tests whose bodies run on several workers at once.

    from gridwise.testing import workers

    @workers(1, 2, 3, 4)
    def test_sum():
        world = gridwise.world()
        ...

becomes `test_sum[mpi-1]` ... `test_sum[gloo-4]`. Worker processes are started once per test run and transport, as many as
the largest test needs. The body travels to the workers as code, already rewritten by pytest, so that a failed
`assert` says the same as in any other test; arguments (parametrised, or of fixtures whose values can be pickled) travel
along. A test that hangs fails after `gridwise_timeout` seconds (an option of pytest's ini file; 60) with every worker's
stack, and the next one gets new workers.

`pytest --gridwise-device cuda` runs the same bodies with their tensors on that device, made of the same random numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch

from ..comm.launching.start import mpi_missing
from .device import made_on

if TYPE_CHECKING:
    from ..comm.launching.pool import Pool

MARK = "gridwise_workers"
POOLS = pytest.StashKey["dict[str, Pool]"]()
SIZES = pytest.StashKey["dict[str, int]"]()
TRANSPORTS = ("mpi", "gloo")


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
    transport, count = setting
    missing = mpi_missing() if transport == "mpi" else None
    if missing:
        pytest.skip(missing)
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names if name != gridwise_setting.__name__}
    if gridwise_setting.__name__ in names:
        arguments[gridwise_setting.__name__] = setting
    seconds = float(pyfuncitem.config.getini("gridwise_timeout"))
    pool, device = _pool(pyfuncitem.config, transport), pyfuncitem.config.getoption("--gridwise-device")
    try:
        with _by_value(pyfuncitem.obj):
            outcomes = pool.run(_body, pyfuncitem.obj, arguments, device, workers=count, timeout=seconds)
    except Exception as error:
        raise error.with_traceback(None) from None  # the note has the worker's; the pool's would only hide it
    for outcome in filter(None, outcomes):
        outcome.happen()
    return True


@dataclass(frozen=True)
class Outcome:
    """How a test ended on a worker, where that is neither well nor an error. Pytest's own cannot be pickled."""

    expected_failure: bool
    reason: str

    def happen(self) -> None:
        __tracebackhide__ = True
        if self.expected_failure:
            pytest.xfail(self.reason)
        pytest.skip(self.reason)


def _body(test: Callable[..., object], arguments: dict[str, Any], device: str) -> Outcome | None:
    """Runs on the workers: every test starts from the same random numbers, whatever ran before it."""
    torch.manual_seed(0)
    try:
        with made_on(device):
            test(**arguments)
    except (pytest.skip.Exception, pytest.xfail.Exception) as outcome:
        return Outcome(isinstance(outcome, pytest.xfail.Exception), str(outcome))
    except pytest.fail.Exception as failure:
        raise AssertionError(str(failure)).with_traceback(failure.__traceback__) from None
    return None


def _setting(item: pytest.Item) -> tuple[str, int] | None:
    callspec = getattr(item, "callspec", None)
    if callspec is None or item.get_closest_marker(MARK) is None:
        return None
    found: tuple[str, int] = callspec.params[gridwise_setting.__name__]
    return found


def _pool(config: pytest.Config, transport: str) -> Pool:
    from ..comm.launching.pool import Pool

    pools = config.stash[POOLS]
    if transport not in pools:
        pools[transport] = Pool(config.stash[SIZES][transport], transport)
    return pools[transport]


@contextmanager
def _by_value(test: Callable[..., object]) -> Iterator[None]:
    """Ship the code of the test's module, not its name: the workers would import it without pytest's rewriting."""
    module = sys.modules[test.__module__]
    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
