"""Random numbers by a key and the index of an element."""

from __future__ import annotations

import pytest
import torch

from gridwise.operators.random import random_stream
from gridwise.operators.random.random_stream import Elements, RandomStream

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_uniform_numbers_are_below_one(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    y = RandomStream(5).uniform(Elements((1 << 16,)), dtype, CPU)
    assert y.dtype == dtype
    assert 0 <= y.min() <= y.max() < 1
    assert abs(y.double().mean() - 0.5) < 0.01
    largest = torch.full((2,), 1 - 2.0**-53, dtype=torch.float64)
    monkeypatch.setattr(random_stream, "uniform_numbers", lambda *_: largest.clone())
    assert RandomStream(5).uniform(Elements((2,)), dtype, CPU).max() < 1


def test_integers_are_below_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = torch.full((1,), 1 - 2.0**-53, dtype=torch.float64)
    monkeypatch.setattr(random_stream, "uniform_numbers", lambda *_: largest.clone())
    for low, high in ((0, 3), (10**6, 10**6 + 3), (-5, 2), (2**52, 2**53)):
        assert RandomStream(5).integers(low, high, Elements((1,)), torch.int64, CPU).item() == high - 1


def test_no_operator_repeats_the_numbers_of_another() -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        stream = RandomStream(int(torch.empty((), dtype=torch.int64).random_()))
        streams = [stream, *(stream.at(n) for n in range(50)), *(stream.at(n).at(1) for n in range(50))]
        numbers = torch.cat([each.uniform(Elements((1000,)), torch.float64, CPU) for each in streams])
        assert len(numbers.unique()) == len(numbers)


def test_a_key_on_the_device_gives_the_same_streams() -> None:
    key = 2**62 + 12345
    for number in (0, 1, 7, 1000):
        assert int(RandomStream(torch.tensor(key)).at(number).key) == RandomStream(key).at(number).key
