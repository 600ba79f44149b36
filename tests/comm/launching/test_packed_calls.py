"""What cannot be sent to workers is refused before any is started, in words that help."""

from __future__ import annotations

import threading

import pytest

from gridwise.comm.launching.launch import launch
from gridwise.comm.launching.packed_calls import packed_call
from gridwise.comm.launching.pool import Pool
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


class Holds:
    def __init__(self, lock: object) -> None:
        self.lock = lock

    def method(self) -> None: ...
