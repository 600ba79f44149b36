"""Many keys are looked up at once, in whatever order they are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from gridwise.checkpoint.format.manifest import StoredTensor
from gridwise.checkpoint.format.stored_tensors import StoredTensors
from gridwise.checkpoint.format.whole_columns import NO_WHOLES

TENSORS = StoredTensors(NO_WHOLES._replace(keys=list("abcd")), {"e": StoredTensor("F32", (2,), ())})


@pytest.mark.parametrize(
    ("keys", "places"),
    [
        ("", []),
        ("abcd", [0, 1, 2, 3]),
        ("bc", [1, 2]),
        ("d", [3]),
        ("cb", [2, 1]),
        ("ac", [0, 2]),
        ("cde", [2, 3, -1]),
        ("ex", [-1, -1]),
        ("xa", [-1, 0]),
    ],
)
def test_places_of_keys(keys: str, places: list[int]) -> None:
    found = TENSORS.places(list(keys))
    assert found.dtype == np.int64
    assert found.tolist() == places
