"""Random numbers of a model: in the range that torch promises, in every dtype, and drawn when torch would draw them."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.models import random
from gridwise.models.random import Elements, RandomStream

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_uniform_numbers_are_below_one(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    y = RandomStream(5).uniform(Elements((1 << 16,)), dtype, CPU)
    assert y.dtype == dtype
    assert 0 <= y.min() <= y.max() < 1
    assert abs(y.double().mean() - 0.5) < 0.01
    largest = torch.full((2,), 1 - 2.0**-53, dtype=torch.float64)
    monkeypatch.setattr(random, "uniform_numbers", lambda *_: largest.clone())
    assert RandomStream(5).uniform(Elements((2,)), dtype, CPU).max() < 1


def test_integers_are_below_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = torch.full((1,), 1 - 2.0**-53, dtype=torch.float64)
    monkeypatch.setattr(random, "uniform_numbers", lambda *_: largest.clone())
    for low, high in ((0, 3), (10**6, 10**6 + 3), (-5, 2), (2**52, 2**53)):
        assert RandomStream(5).integers(low, high, Elements((1,)), torch.int64, CPU).item() == high - 1


def test_small_probabilities_are_not_rounded() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1])
    x = torch.full((1 << 16,), 2.0**-12, dtype=torch.bfloat16)
    assert gridwise.distribute(lambda x: torch.bernoulli(x), P)(x).sum() < 64
    assert bool(gridwise.distribute(lambda x: torch.bernoulli(x), P)(torch.ones_like(x)).all())


def test_dropout_without_a_mode_is_on() -> None:
    P, x = gridwise.world().create_cartesian_topology_partition([1, 1]), torch.ones(16, 16)
    for train in (None, True):
        y, mask = gridwise.distribute(lambda x, train=train: torch.native_dropout(x, 0.5, train), P)(x)
        assert torch.equal(y, 2.0 * mask)
        assert 0 < mask.sum() < mask.numel()


def test_normal_numbers_around_tensors_are_refused() -> None:
    P, x = gridwise.world().create_cartesian_topology_partition([1, 1]), torch.ones(4, 3)
    for function in (lambda x: torch.normal(0.0, x), lambda x: torch.normal(x, 1.0), lambda x: torch.normal(x, x)):
        with pytest.raises(UnsupportedError, match=r"normal.*distribution is given by a tensor"):
            gridwise.distribute(function, P)(x)


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


def test_complex_numbers_are_refused() -> None:
    P, x = gridwise.world().create_cartesian_topology_partition([1]), torch.ones(4, dtype=torch.complex64)
    for function in (lambda x: torch.rand_like(x), lambda x: torch.randn_like(x)):
        model = gridwise.distribute(function, P)
        with pytest.raises(UnsupportedError, match=r"torch\.complex64"):
            model(x)
        with gridwise.sequential_random():
            assert model(x).imag.any()
