"""Plain values and keys: what goes in comes out, what cannot is refused when it is saved."""

from __future__ import annotations

import datetime
import enum
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gridwise import checkpoint
from gridwise.checkpoint.format.values import decoded, encoded, escaped, joined, unescaped
from gridwise.errors import CheckpointDamaged, CheckpointMismatch

names = st.text(max_size=6) | st.integers(-3, 10**12)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
scalars = leaves | st.sampled_from([torch.float32, torch.bfloat16, torch.device("cpu")])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return inner | st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(names, inner, max_size=4)


trees = containers(containers(containers(scalars)))


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float | complex):
        return repr(a) == repr(b)
    return bool(a == b)


@given(trees)
def test_values_come_back_as_they_were(value: Any) -> None:
    through_json = json.loads(json.dumps(encoded(value, "key"), allow_nan=False))
    assert same(decoded(through_json), value)


@given(st.lists(names, min_size=1, max_size=3), st.lists(names, min_size=1, max_size=3))
def test_different_ways_have_different_keys(a: list[str | int], b: list[str | int]) -> None:
    assert [unescaped(part) for part in joined("", *a).split("/")] == a
    assert (joined("", *a) == joined("", *b)) == (a == b)


def test_keys_are_readable() -> None:
    assert joined("model", "conv.weight") == "model/conv.weight"
    assert joined("", "a/b~c", 7) == "a~1b~0c/#7"
    assert escaped("#7") != escaped(7)


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [object(), {1.5: 2}, datetime.date(2020, 1, 1), {"a": [1, {2, 3}]}, Colour.RED, lambda: 1, 1 << 9000, {True: 1}],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_refused_when_it_is_saved(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CheckpointMismatch, match="bad"):
        checkpoint.save(tmp_path / "c", {"good": 1, "bad": value})
    assert not (tmp_path / "c").exists()


def test_a_value_that_holds_itself_is_refused(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    knot: dict[str, Any] = {}
    knot["again"] = knot
    for value in (loop, knot):
        with pytest.raises(CheckpointMismatch, match="nested deeper"):
            checkpoint.save(tmp_path / "c", {"bad": value})


@pytest.mark.parametrize(
    "value",
    [
        {"$float": "one"},
        {"$bytes": "?"},
        {"$dtype": "load"},
        {"$dtype": 3},
        {"$device": "moon"},
        {"$tuple": 3},
        {"$dict": [[1]]},
        {"$dict": [["a", 1], ["a", 2]]},
        {"$dict": [[None, 1]]},
        {"$eval": "1"},
        {"$complex": ["a", "b"]},
    ],
)
def test_values_that_nobody_has_saved_are_damage(value: Any) -> None:
    with pytest.raises(CheckpointDamaged):
        decoded(value)


def test_states_of_generators_come_back(tmp_path: Path) -> None:
    python, numpy, own = random.Random(3), np.random.default_rng(3), torch.Generator().manual_seed(3)
    old = np.random.RandomState(3)
    state = {"python": python.getstate(), "numpy": numpy.bit_generator.state, "torch": own, "old": old.get_state()}
    checkpoint.save(tmp_path / "c", state)
    expected = (python.random(), numpy.random(), torch.rand(1, generator=own), old.rand())
    checkpoint.load(tmp_path / "c", state)
    python.setstate(state["python"])
    numpy.bit_generator.state = state["numpy"]
    old.set_state(state["old"])
    assert (python.random(), numpy.random(), torch.rand(1, generator=own), old.rand()) == expected
    assert not math.isnan(expected[0])
