"""An error on one worker is everybody's: networks that differ, loaders that fail, values that are no array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import gridwise
import gridwise.tagi.nn as nn
from gridwise.errors import ArgumentError
from gridwise.tagi import Forecaster, Regressor
from gridwise.testing import workers

RAGGED = [[1.0, 2.0], [3.0]]
X, Y = np.random.default_rng(0).standard_normal((8, 6)), np.ones((8, 2))
PAIRS = [(X[i : i + 2], Y[i : i + 2]) for i in range(0, 8, 2)]


def shared(net: nn.Sequential) -> nn.DDPSequential:
    P = gridwise.world()
    config = nn.DDPConfig([], P.transport.name, P.rank, P.size)
    return nn.DDPSequential(net, config, average=False)


def is_last() -> bool:
    return gridwise.world().rank == gridwise.world().size - 1


@workers(2)
@pytest.mark.parametrize(
    "mine",
    [
        lambda last: [nn.Linear(6, 6), nn.ReLU(), *([nn.Tanh(), nn.ReLU()] if last else [nn.ReLU(), nn.Tanh()])],
        lambda last: [nn.Linear(6, 6), nn.Exp(3.0 if last else 1.0)],
        lambda last: [nn.Linear(6, 6), nn.SplitActivation(nn.Exp(3.0 if last else 1.0))],
        lambda last: [nn.Linear(6, 6), nn.AGVI(nn.Exp(), overfit_mu=last)],
        lambda last: [nn.Linear(6, 6), tanh := nn.Tanh(), nn.Linear(6, 6), nn.ReLU() if last else tanh],
    ],
)
def test_networks_that_compute_something_else_with_the_same_parameters_are_refused(
    mine: Callable[[bool], list[nn.BaseLayer]],
) -> None:
    with pytest.raises(ArgumentError, match="different networks"):
        shared(nn.Sequential(*mine(is_last())))
    shared(nn.Sequential(*mine(False)))


class Loader:
    """Gives the batches of `readings`, one after the other, and raises those that are exceptions."""

    def __init__(self, *readings: Sequence[Any]) -> None:
        self.readings = iter(readings)

    def __iter__(self) -> Iterator[Any]:
        for pair in next(self.readings):
            if isinstance(pair, Exception):
                raise pair
            yield pair


@workers(2)
@pytest.mark.parametrize(
    ("readings", "told"),
    [
        ([[PAIRS[0], OSError("gone")]], "worker 1: OSError: gone"),  # when the data are looked through
        ([PAIRS, [PAIRS[0], OSError("gone")]], "worker 1: OSError: gone"),  # in the first epoch
        ([PAIRS, PAIRS[:3]], "worker 1: the loader gave 3 batches, 4 before the first epoch"),
        ([PAIRS, [*PAIRS, PAIRS[0]]], "worker 1: the loader gave more than 4 batches, 4 before the first epoch"),
    ],
)
def test_a_loader_that_fails_on_one_worker(readings: list[Any], told: str) -> None:
    model = Regressor(shared(nn.Sequential(nn.Linear(6, 2))).model)
    with pytest.raises(ArgumentError, match=told):
        model.fit(Loader(*(readings if is_last() else [PAIRS, PAIRS])), progress=False)
    model.fit(X, Y, progress=False)  # and it goes on


@workers(2)
def test_a_series_that_is_none_on_one_worker() -> None:
    model = Forecaster(nn.Sequential(nn.Linear(3, 1)), window=3)
    shared(model._regressor.net)
    with pytest.raises(ArgumentError, match="worker 1"):
        model.fit(RAGGED if is_last() else np.arange(20.0), progress=False)
    model.fit(np.arange(20.0), progress=False)


@workers(2)
def test_ragged_values_on_one_worker() -> None:
    net = shared(nn.Sequential(nn.Linear(6, 2)))
    x, y = torch.ones(2, 6), torch.ones(2, 2)
    with pytest.raises(ArgumentError, match="worker 1"):
        net(RAGGED if is_last() else x)
    net(x)
    nn.OutputUpdater().update(net.output_z_buffer, RAGGED if is_last() else y, 0.1, net.input_delta_z_buffer)
    with pytest.raises(ArgumentError, match="worker 1"):
        net.backward()
    net(x)
    net.model.set_delta_z(RAGGED if is_last() else y, y)
    with pytest.raises(ArgumentError, match="worker 1"):
        net.backward()
    net(x)
    net.model.set_delta_z(y, -y)
    net.backward()
    net.step()
