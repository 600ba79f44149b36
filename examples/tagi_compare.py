"""TAGI's estimator against a Gaussian process, gradient-boosted quantiles and an ensemble of torch networks.

Run: python examples/tagi_compare.py [splits]      (a plot is saved under out/)

Fuel consumption (auto-mpg), random 90/10 splits. All of them estimate the noise themselves. The quantiles of the trees
are read as a Gaussian: the mean is their middle, the standard deviation their width divided by 3.92.
"""

import sys
import time
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from mlxtend.data import autompg_data
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import gridwise.tagi as tagi
from gridwise.tagi import metric, plots
from gridwise.tagi.sklearn import TAGIRegressor

HIDDEN, MEMBERS, EPOCHS = 50, 5, 40


def with_tagi(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return TAGIRegressor((HIDDEN,), "relu", random_state=0).fit(x, y).predict(new, return_std=True)


def with_process(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    warnings.simplefilter("ignore")  # a column that does not matter has no length scale
    kernel = RBF(np.ones(x.shape[1]), (1e-2, 1e4)) + WhiteKernel(0.1)
    process = make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True))
    return process.fit(x, y).predict(new, return_std=True)


def with_quantiles(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    trees = [GradientBoostingRegressor(loss="quantile", alpha=a, random_state=0) for a in (0.025, 0.5, 0.975)]
    low, middle, high = (tree.fit(x, y).predict(new) for tree in trees)
    return middle, np.maximum((high - low) / 3.92, 1e-3)


def with_ensemble(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Networks that predict mean and log-variance, trained on the likelihood; combined into one mean and variance."""
    mx, sx, my, sy = x.mean(0), x.std(0), y.mean(), y.std()
    xs, ys, new = (torch.tensor(a).float() for a in ((x - mx) / sx, (y - my) / sy, (new - mx) / sx))
    outputs = []
    for seed in range(MEMBERS):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 2))
        optimiser = torch.optim.Adam(net.parameters(), 1e-2)
        for rows in (rows for _ in range(EPOCHS) for rows in torch.randperm(len(xs)).split(32)):
            mean, log_var = net(xs[rows]).unbind(1)
            optimiser.zero_grad()
            (log_var + (ys[rows] - mean) ** 2 / log_var.exp()).mean().backward()
            optimiser.step()
        outputs.append(net(new).detach().double().numpy())
    means, variances = np.stack(outputs)[..., 0], np.exp(np.stack(outputs)[..., 1])
    return means.mean(0) * sy + my, np.sqrt(variances.mean(0) + means.var(0)) * sy


METHODS = {"TAGI": with_tagi, "Gaussian process": with_process, "quantiles": with_quantiles, "networks": with_ensemble}


def main(splits: int) -> None:
    x, y = autompg_data()
    x = x[:, :-1]  # the last column held names
    fig, axes = plt.subplots(1, 5, figsize=(18, 3.6), layout="constrained")
    print(f"{'':18s}  RMSE   log-lik.  CRPS   95 % holds  seconds")
    for (name, method), ax in zip(METHODS.items(), axes, strict=False):
        rows, seen = [], []
        for split in range(splits):
            test, train = np.split(np.random.default_rng(split).permutation(len(x)), [len(x) // 10])
            start = time.process_time()
            mean, std = method(x[train], y[train], x[test])
            rows.append([time.process_time() - start, metric.rmse(mean, y[test])])
            rows[-1] += [score(mean, y[test], std) for score in (metric.log_likelihood, metric.crps, metric.coverage)]
            seen.append((mean, std, y[test]))
        seconds, rmse, likelihood, crps, held = np.mean(rows, 0)
        print(f"{name:18s}  {rmse:.2f}   {likelihood:.2f}     {crps:.2f}   {held:.1%}       {seconds:.1f}", flush=True)
        mean, std, found = (np.concatenate(part) for part in zip(*seen, strict=True))
        ax.errorbar(mean, found, xerr=1.96 * std, fmt=".", markersize=3, linewidth=0.4, ecolor="0.75")
        ax.set(title=name, xlabel="predicted mpg, 95 %", ylabel="mpg", xlim=(0, 50), ylim=(5, 50))
        plots.plot_calibration(tagi.Prediction(mean, std, np.zeros_like(std)), found, axes[-1], name)
    Path("out").mkdir(exist_ok=True)
    fig.savefig("out/tagi_compare.png", dpi=120)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
