"""One outcome for all workers, whatever a step raises on one of them."""

from __future__ import annotations

import pytest
from slicing import partition, raised

import gridwise
from gridwise.data.agreement import together
from gridwise.errors import GridwiseError, UnsupportedError
from gridwise.testing import workers


@workers(2)
@pytest.mark.parametrize("error", [ZeroDivisionError("no"), KeyError("name"), UnsupportedError("no"), OSError("no")])
def test_any_error_on_one_worker_is_one_on_all(error):
    world = gridwise.world()

    def step():
        if world.rank == 1:
            raise error

    text = raised(together, world.transport, world.team, "a step", step)
    assert text.startswith("DataError: a step failed.")
    assert "worker 1: " in text
    assert "worker 0" not in text
    assert isinstance(error, GridwiseError | OSError) or type(error).__name__ in text


def test_one_worker_has_the_error_itself():
    P = partition(1)

    def step():
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        together(P.transport, P.team, "a step", step)
