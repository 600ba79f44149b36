"""What cannot be sent to workers is refused before any is started, in words that help."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from typing import Any

import cloudpickle
import pytest

from gridwise.comm.launching.launch import launch
from gridwise.comm.launching.packed_calls import packed_call
from gridwise.comm.launching.pool import Pool
from gridwise.comm.launching.start import environment_for, mpiexec
from gridwise.errors import PartitionError

LOCK = threading.Lock()


def add(a: int, b: int = 2) -> int:
    return a + b


@pytest.mark.parametrize("workers", ["4", 2.0, None, True, [2]])
def test_the_number_of_workers_must_be_a_whole_number(workers: object) -> None:
    with pytest.raises(PartitionError, match=r"`workers` \(=.*\) must be a whole number, 1 or more; it is a"):
        launch(add, 1, workers=workers)
    if workers is not None:
        with pytest.raises(PartitionError, match="must be a whole number"):
            Pool(2, "gloo").run(add, 1, workers=workers)


def test_a_call_instead_of_a_function_is_explained() -> None:
    with pytest.raises(PartitionError, match=r"`fn` \(=3\) must be a function .* it is a int\.") as caught:
        launch(add(1), workers=2)
    assert "fix: name the function without calling it" in str(caught.value)
    with pytest.raises(PartitionError, match=r"`fn` \(=None\)"):
        launch(print(end=""), workers=2)


def test_what_cannot_be_pickled_is_named() -> None:
    file = threading.Lock()

    def uses_a_closure() -> None:
        file.acquire()

    def uses_a_global() -> None:
        LOCK.acquire()

    with pytest.raises(PartitionError, match=r"uses_a_closure cannot be sent to the workers: TypeError") as caught:
        launch(uses_a_closure, workers=2)
    assert "  variable `file`, which it uses, is a lock\n  fix: make what cannot be pickled" in str(caught.value)
    with pytest.raises(PartitionError, match="argument 0 is a lock"):
        launch(add, file, workers=2)
    with pytest.raises(PartitionError, match="argument `b` is a lock"):
        launch(add, 1, b=file, workers=2)
    with pytest.raises(PartitionError, match="the object whose method it is is a Holds"):
        packed_call(Holds(file).method, (), {})
    uses_a_global.__module__ = "__main__"  # as in a script
    with pytest.raises(PartitionError, match="variable `LOCK`, which it uses, is a lock"):
        launch(uses_a_global, workers=2)


def test_cached_functions_of_a_script_are_sent() -> None:
    """Their name, `__main__.squared`, means nothing to a worker."""
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, script)
    calls = [
        packed_call(script[name], () if name == "Table" else (3,), {}) for name in ("squared", "total", "made", "Table")
    ]
    environment = environment_for(1, "gloo")
    command, sent = [sys.executable, "-c", UNPACKED], pickle.dumps(calls)
    done = subprocess.run(command, input=sent, capture_output=True, check=False, env=environment)
    assert done.stdout.decode() == "9 18 27 4 ", done.stderr.decode()
    function = cloudpickle.loads(packed_call(script["squared"], (), {}))[0]
    assert function.cache_parameters() == {"maxsize": 7, "typed": True}
    assert cloudpickle.loads(packed_call(mpiexec, (), {}))[0] is mpiexec, "what can be imported is imported"


SCRIPT = """
import functools

@functools.lru_cache(maxsize=7, typed=True)
def squared(x):
    return x * x

def total(x):
    return squared(x) + squared(-x)

def made(x):
    factor = functools.cache(lambda: x)
    return functools.partial(lambda: factor() * squared(x))()

class Table:
    @functools.cache
    def row(self):
        return squared(2)

    @functools.cached_property
    def first(self):
        return self.row()

    def __str__(self):
        assert self.first == vars(self)["first"]
        return str(self.first)
"""
UNPACKED = """
import pickle, sys, cloudpickle
for call in pickle.load(sys.stdin.buffer):
    function, args, kwargs = cloudpickle.loads(call)
    print(function(*args, **kwargs), end=" ")
"""


class Holds:
    def __init__(self, lock: object) -> None:
        self.lock = lock

    def method(self) -> None: ...
