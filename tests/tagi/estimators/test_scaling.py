"""Standardisation: in float64, block by block, and over all workers."""

from __future__ import annotations

import numpy as np
import torch

import gridwise.tagi as tagi
import gridwise.tagi.nn as nn
from gridwise.tagi.estimators.scaling import ColumnMoments, Scale


def scale_of(blocks: list[torch.Tensor]) -> Scale:
    moments = ColumnMoments()
    for block in blocks:
        moments.add(block)
    return Scale.of(moments)


def test_large_values_that_differ_little() -> None:
    x = torch.from_numpy(1.7e9 + np.arange(200.0))[:, None]
    for blocks in ([x], list(x.split(7))):
        scale = scale_of(blocks)
        np.testing.assert_allclose(scale.std, np.std(x.numpy(), 0), rtol=1e-9)
        np.testing.assert_allclose(scale.standardise(x).std(0, correction=0), 1.0, rtol=1e-9)


def test_the_chunks_of_a_large_block_are_merged() -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((9001, 2)) + np.array([1e5, -3.0]))
    scale = scale_of([x[:0], x, x[:0]])
    torch.testing.assert_close((scale.mean, scale.std), (x.mean(0), x.std(0, correction=0)), rtol=1e-11, atol=0.0)


def test_a_regressor_sees_them_apart() -> None:
    x, y = 1.7e9 + np.arange(200.0), 1e9 + np.arange(200.0)
    tagi.manual_seed(0)
    model = tagi.Regressor(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), sigma_v=0.1)
    p = model.fit(x, y, epochs=3, progress=False).predict(x)
    np.testing.assert_allclose(float(model.scale_x.std), np.std(x), rtol=1e-9)
    assert tagi.metric.rmse(p.mean, y) < 15


def test_missing_values_and_constant_columns() -> None:
    rows = torch.tensor([[1.0, 0.1 + 1e6, np.nan], [3.0, 0.1 + 1e6, np.nan], [np.nan, 0.1 + 1e6, np.nan]]).double()
    scale = scale_of([rows[:1], rows[1:]])
    torch.testing.assert_close(scale.mean, torch.tensor([2.0, rows[0, 1].item(), 0.0]).double())
    torch.testing.assert_close(scale.std, torch.ones(3).double())
