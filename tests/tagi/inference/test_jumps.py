"""Jumps stay where they are, and can be moved: units close to one are then on either side."""

from __future__ import annotations

import pytest
import torch

import gridwise.tagi.nn as nn
from gridwise.tagi.inference.jumps import jumps_moved
from gridwise.tagi.inference.update import FLOOR, ParameterChange, capped_update


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.LeakyReLU()])
def test_units_close_to_zero_are_on_either_side(layer: nn.BaseLayer) -> None:
    m = torch.tensor([[1.0, -1.0, 1e-6, -1e-6, 0.0]])

    def on() -> list[bool]:
        return (layer.forward(nn.Gaussian(m, torch.ones_like(m))).jacobian()[0] == 1).tolist()

    assert on() == [True, False, True, False, False]
    with jumps_moved(1e-5):
        assert on() == [True, False, False, False, False]
    with jumps_moved(-1e-5):
        assert on() == [True, False, True, True, True]
    assert on() == [True, False, True, False, False]


def test_a_unit_of_another_size_has_its_own_reach() -> None:
    m = torch.tensor([[1.0, 300.0], [-1.0, 1e-3], [1.0, -300.0]])
    with jumps_moved(1e-5):
        assert nn.ReLU().forward(nn.Gaussian(m)).jacobian()[1].tolist() == [0.0, 0.0]


def test_almost_equal_means_change_places_under_a_maximum() -> None:
    m = torch.ones(1, 1, 16, 16) + 1e-7 * torch.randn(1, 1, 16, 16)
    x = nn.Gaussian(m, torch.rand_like(m))
    pool = nn.MaxPool2d(2, 2)
    plain = pool.forward(x)
    sides = []
    for reach in (1e-5, -1e-5):
        with jumps_moved(reach):
            sides.append(pool.forward(x))
    for side in sides:
        torch.testing.assert_close(side.mu, plain.mu)
    assert (sides[0].variance() != sides[1].variance()).float().mean() > 0.5
    assert torch.equal(pool.forward(x).variance(), plain.variance())


def test_variances_close_to_zero_are_on_either_side_of_the_floor() -> None:
    counts = []
    for reach in (0.0, 1e-4, -1e-4):
        var, floored = torch.tensor([1.0, 1.0, 1.0]), torch.zeros((), dtype=torch.long)
        sums = torch.tensor([-0.5, -1.0 + 1e-6, -1.0 - 1e-6])  # leave a half, a little more and a little less than zero
        with jumps_moved(reach):
            capped_update([ParameterChange(torch.zeros(3), var, torch.zeros(3), sums, None, floored)])
        counts.append((int(floored), int((var == FLOOR).sum())))
    assert counts == [(1, 1), (2, 2), (0, 0)]
