"""Random numbers of a model: drawn when torch would draw them, or refused."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.errors import UnsupportedError


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


def test_complex_numbers_are_refused() -> None:
    P, x = gridwise.world().create_cartesian_topology_partition([1]), torch.ones(4, dtype=torch.complex64)
    for function in (lambda x: torch.rand_like(x), lambda x: torch.randn_like(x)):
        model = gridwise.distribute(function, P)
        with pytest.raises(UnsupportedError, match=r"torch\.complex64"):
            model(x)
        with gridwise.sequential_random():
            assert model(x).imag.any()
