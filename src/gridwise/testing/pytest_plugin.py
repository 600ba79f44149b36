"""What the plugin `gridwise_pytest` does when a test asks for workers: it calls the body of the test on each of them.

The body is sent to the workers as code, already rewritten by pytest, so that a failed `assert` reports the same as in any
other test. Arguments (parameters, and values of fixtures that can be pickled) are sent along.
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

# The hooks, for editable installs of an earlier version, whose metadata name this module.
from gridwise_pytest import gridwise_setting as gridwise_setting
from gridwise_pytest import pytest_addoption as pytest_addoption
from gridwise_pytest import pytest_collection_finish as pytest_collection_finish
from gridwise_pytest import pytest_configure as pytest_configure
from gridwise_pytest import pytest_generate_tests as pytest_generate_tests
from gridwise_pytest import pytest_pyfunc_call as pytest_pyfunc_call
from gridwise_pytest import pytest_unconfigure as pytest_unconfigure

from ..comm.launching.start import mpi_missing
from .device import made_on

if TYPE_CHECKING:
    from ..comm.launching.pool import Pool


def call_on_workers(
    test: Callable[..., object],
    arguments: dict[str, Any],
    device: str,
    transport: str,
    count: int,
    seconds: float,
    pools: dict[str, Pool],
    size: int,
) -> None:
    """Call `test` on `count` workers of the transport's pool, which is started with `size` of them if there is none yet."""
    __tracebackhide__ = True
    missing = mpi_missing() if transport == "mpi" else None
    if missing:
        pytest.skip(missing)
    pool = _pool(pools, transport, size)
    try:
        with _by_value(test):
            outcomes = pool.run(_body, test, arguments, device, workers=count, timeout=seconds)
    except Exception as error:
        raise error.with_traceback(None) from None  # the note has the worker's traceback; the pool's would only hide it
    for outcome in filter(None, outcomes):
        outcome.happen()


@dataclass(frozen=True)
class Outcome:
    """A skip or an expected failure on a worker; pytest's own exceptions cannot be pickled."""

    expected_failure: bool
    reason: str

    def happen(self) -> None:
        __tracebackhide__ = True
        if self.expected_failure:
            pytest.xfail(self.reason)
        pytest.skip(self.reason)


def _body(test: Callable[..., object], arguments: dict[str, Any], device: str) -> Outcome | None:
    """Runs on the workers: every test starts from the same random numbers, and with what others have patched restored."""
    torch.manual_seed(0)
    try:
        with made_on(device), pytest.MonkeyPatch.context() as patches:
            test(**{k: patches if isinstance(v, pytest.MonkeyPatch) else v for k, v in arguments.items()})
    except (pytest.skip.Exception, pytest.xfail.Exception) as outcome:
        return Outcome(isinstance(outcome, pytest.xfail.Exception), str(outcome))
    except pytest.fail.Exception as failure:
        raise AssertionError(str(failure)).with_traceback(failure.__traceback__) from None
    return None


def _pool(pools: dict[str, Pool], transport: str, size: int) -> Pool:
    from ..comm.launching.pool import Pool

    if transport not in pools:
        pools[transport] = Pool(size, transport)
    return pools[transport]


@contextmanager
def _by_value(test: Callable[..., object]) -> Iterator[None]:
    """Send the code of the test's module, not its name: workers would import it without pytest's rewriting."""
    module = sys.modules[test.__module__]
    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
