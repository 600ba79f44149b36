"""Fuel consumption with intervals, against a torch network of the same size: 20 random 90/10 splits of auto-mpg.

Run: python examples/tagi_regression.py [splits]      (a plot is saved under out/)
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from mlxtend.data import autompg_data

import gridwise.tagi as tagi
import gridwise.tagi.nn as nn
from gridwise.tagi import metric, plots

HIDDEN, EPOCHS, BATCH, SIGMA = 50, 40, 10, 0.3


def with_tagi(x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> tagi.Prediction:
    net = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    return tagi.Regressor(net, sigma_v=SIGMA).fit(x, y, epochs=EPOCHS, batch_size=BATCH, progress=False).predict(x_test)


def with_torch(x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> tagi.Prediction:
    """Adam on the squared error; the standard deviation is that of the training residuals, the same everywhere."""
    mx, sx, my, sy = x.mean(0), x.std(0), y.mean(), y.std()
    net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1))
    xs, ys = torch.tensor((x - mx) / sx).float(), torch.tensor((y - my) / sy).float()[:, None]
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(xs)).split(BATCH):
            optimiser.zero_grad()
            torch.nn.functional.mse_loss(net(xs[rows]), ys[rows]).backward()
            optimiser.step()
    with torch.no_grad():
        spread = float((net(xs) - ys).std()) * sy
        mean = net(torch.tensor((x_test - mx) / sx).float()).numpy() * sy + my
    return tagi.Prediction(mean, np.full_like(mean, spread), np.zeros_like(mean))


def main(splits: int) -> None:
    x, y = autompg_data()
    x = x[:, :-1]  # the last column held names
    scores: dict[str, list[tuple[float, float, float]]] = {"TAGI": [], "torch, Adam": []}
    for split in range(splits):
        order = np.random.default_rng(split).permutation(len(x))
        test, train = order[: len(x) // 10], order[len(x) // 10 :]
        for name, method in (("TAGI", with_tagi), ("torch, Adam", with_torch)):
            torch.manual_seed(split)
            p, seen = method(x[train], y[train], x[test]), y[test][:, None]
            score = metric.rmse(p.mean, seen), metric.log_likelihood(p.mean, seen, p.std)
            scores[name].append((*score, metric.coverage(p.mean, seen, p.std)))
            if split == 0 and name == "TAGI":
                shown, observed = p, seen
    for name, rows in scores.items():
        (rmse, ll, cover), (d_rmse, d_ll, _) = np.mean(rows, 0), np.std(rows, 0)
        print(
            f"{name:12s} RMSE {rmse:.2f} ± {d_rmse:.2f}   log-likelihood {ll:.2f} ± {d_ll:.2f}   95 % holds {cover:.0%}"
        )
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    plots.plot_intervals(shown.mean, shown, observed, ax=left).set(xlabel="predicted mpg", ylabel="mpg")
    plots.plot_calibration(shown, observed, ax=right)
    Path("out").mkdir(exist_ok=True)
    fig.savefig("out/tagi_regression.png", dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
