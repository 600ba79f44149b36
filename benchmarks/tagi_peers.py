"""`TAGIRegressor` as it comes, beside other ways to get intervals: RMSE, coverage and mean width of 90 % intervals.

    python benchmarks/tagi_peers.py [--splits 3] [--only sinc hetero]

Random 80/20 splits. TAGI chooses hidden layers, noise and epochs on its training rows; its defaults (the activation, the most
epochs) were set with other splits of these data sets in view. Peers: BayesianRidge and a Gaussian process (a length scale per
column, learnt noise) on standardised columns; gradient boosting with a split-conformal interval (a quarter of the rows held
out); boosting in MAPIE's cross-conformal regressor (CV+), where MAPIE is installed. Goals: coverage between .87 and .94; an
RMSE of at most 1.1 times the better of BayesianRidge and boosting.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from mlxtend.data import autompg_data, boston_housing_data
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2, make_friedman3
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge

from gridwise.tagi.sklearn import TAGIRegressor
from tagi_intervals import california_like

Answer = tuple[np.ndarray, np.ndarray, np.ndarray]  # mean, low, high
LEVEL, REACH = 0.9, 1.6449


def data_sets() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    def rng(seed: int) -> np.random.Generator:
        return np.random.default_rng(seed)

    out: dict[str, tuple[np.ndarray, np.ndarray]] = {
        "diabetes": load_diabetes(return_X_y=True),
        "friedman 1": make_friedman1(500, noise=1.0, random_state=0),
        "friedman 2": make_friedman2(500, noise=125.0, random_state=0),
        "friedman 3": make_friedman3(500, noise=0.1, random_state=0),
    }
    g = rng(0)
    x = g.uniform(-10, 10, (400, 1))
    out["sinc"] = x, np.sinc(x[:, 0] / np.pi) + 0.1 * g.normal(size=400)
    g = rng(1)
    x = g.normal(size=(400, 5))
    y = x[:, 0] + np.sin(2 * x[:, 1]) + 0.5 * x[:, 2] * x[:, 3]
    out["heavy tails"] = x, y + 0.5 * g.standard_t(3, 400)
    g = rng(2)
    x = g.uniform(-2, 2, (400, 4))
    out["skewed"] = x, x[:, 0] ** 2 + x[:, 1] * x[:, 2] + g.exponential(0.7, 400)
    g = rng(3)
    x = g.uniform(-3, 3, (500, 1))
    out["hetero"] = x, np.sin(x[:, 0]) + (0.05 + 0.2 * np.abs(x[:, 0])) * g.normal(size=500)
    x, mpg = autompg_data()
    return out | {"boston": boston_housing_data(), "auto-mpg": (x[:, :-1], mpg), "california-like": california_like()}


# ---- peers: (training rows, targets, rows to predict, seed) to mean and interval -----------------------------------------
def tagi(x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int, **options: Any) -> Answer:
    model = TAGIRegressor(random_state=seed, **options).fit(x, y)
    return model.predict(new), *model.predict_interval(new, LEVEL)


def heteroscedastic(x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> Answer:
    return tagi(x, y, new, seed, noise="heteroscedastic")


def ridge(x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> Answer:
    mean, std = BayesianRidge().fit(x, y).predict(new, return_std=True)
    return mean, mean - REACH * std, mean + REACH * std


def gaussian_process(x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> Answer:
    kernel = ConstantKernel() * RBF(np.ones(x.shape[1]), (1e-2, 1e3)) + WhiteKernel()
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed).fit(x, y)
    mean, std = model.predict(new, return_std=True)
    return mean, mean - REACH * std, mean + REACH * std


def boosting(x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> Answer:
    order = np.random.default_rng(seed).permutation(len(x))
    held, kept = order[: len(x) // 4], order[len(x) // 4 :]
    errors = np.abs(y[held] - GradientBoostingRegressor(random_state=seed).fit(x[kept], y[kept]).predict(x[held]))
    reach = np.quantile(errors, min(1.0, LEVEL * (1 + 1 / len(held))), method="higher")
    mean = GradientBoostingRegressor(random_state=seed).fit(x[kept], y[kept]).predict(new)
    return mean, mean - reach, mean + reach


def boosting_of_all_rows(x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> Answer:
    """The reference for the RMSE: no rows are held out, and there is no interval."""
    mean = GradientBoostingRegressor(random_state=seed).fit(x, y).predict(new)
    return mean, mean * np.nan, mean * np.nan


def mapie(x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> Answer:
    from mapie.regression import CrossConformalRegressor

    model = CrossConformalRegressor(GradientBoostingRegressor(random_state=seed), confidence_level=LEVEL, cv=5)
    mean, ends = model.fit_conformalize(x, y).predict_interval(new)
    return mean, ends[:, 0, 0], ends[:, 1, 0]


PEERS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, int], Answer]] = {
    "TAGIRegressor": tagi,
    "heteroscedastic": heteroscedastic,
    "BayesianRidge": ridge,
    "GP": gaussian_process,
    "boosting, conformal": boosting,
    "boosting, MAPIE": mapie,
    "boosting": boosting_of_all_rows,
}


def splits(rows: int, count: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    for seed in range(count):
        order = np.random.default_rng(5000 + seed).permutation(rows)
        yield seed, order[: round(0.8 * rows)], order[round(0.8 * rows) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the optimiser of the Gaussian process
    print(
        f"means over {given.splits} splits: RMSE, coverage and width of 90 % intervals, CPU seconds to fit and predict"
    )
    for name, (x, y) in data_sets().items():
        if given.only and name not in given.only:
            continue
        for peer, run in PEERS.items():
            rows = []
            for seed, train, test in splits(len(x), given.splits):
                centre, size = x[train].mean(0), x[train].std(0)
                start = time.process_time()
                try:
                    mean, low, high = run((x[train] - centre) / size, y[train], (x[test] - centre) / size, seed)
                except ImportError:
                    break
                seconds = time.process_time() - start
                held = ((low <= y[test]) & (y[test] <= high)).mean()
                rows.append((np.sqrt(((mean - y[test]) ** 2).mean()), held, (high - low).mean(), seconds))
            if rows:
                rmse, held, width, seconds = np.mean(rows, 0)
                interval = f"{held:6.3f} {width:9.3g}" if np.isfinite(width) else " " * 16
                print(f"{name:16s} {peer:20s} {rmse:9.3g} {interval} {seconds:6.1f}", flush=True)


if __name__ == "__main__":
    main()
