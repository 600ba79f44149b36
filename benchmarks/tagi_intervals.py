"""One setting for all data sets, a layer of 50 ReLUs: intervals and likelihood of TAGI's estimators against a tuned one.

    python benchmarks/tagi_intervals.py [--splits 8] [--only boston diabetes]

Random 90/10 splits; one split of all data sets takes half a minute. The tuned setting is the best of four `sigma_v` and
any number of epochs by five-fold cross-validation inside each training split; its network and batches have the same
sizes. Goals, for the means over the splits: 90 to 98 % of the observations in the 95 % intervals, an RMSE (or error
rate) of at most 1.1 times the tuned one, a log-likelihood at most 0.1 nat lower.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from mlxtend.data import autompg_data, boston_housing_data
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes, load_digits, make_friedman1, make_friedman2, make_friedman3
from torch import Tensor

import gridwise.tagi as tagi
import gridwise.tagi.nn as nn
from gridwise.tagi.estimators.sklearn.tasks import network_of
from gridwise.tagi.hrc_softmax import class_probabilities, class_tree
from gridwise.tagi.sklearn import TAGIClassifier, TAGIRegressor

HIDDEN, BATCH, FOLDS, MOST_EPOCHS, PATIENCE = 50, 32, 5, 60, 10
SIGMAS = (0.15, 0.25, 0.4, 0.65)


class Score(NamedTuple):
    """For one split: RMSE or fraction of wrong labels, mean log-likelihood, coverage of the 95 % intervals."""

    error: float
    likelihood: float
    coverage: float


# ---- data -----------------------------------------------------------------------------------------------------------
def california_like(n: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """House values from income, age, rooms and place: skewed inputs, noise that grows with the value, and a ceiling."""
    rng = np.random.default_rng(0)
    income, age = rng.lognormal(1.2, 0.45, n), rng.uniform(1, 52, n)
    rooms, people, residents = rng.lognormal(1.65, 0.25, n), rng.lognormal(1.0, 0.25, n), rng.lognormal(7, 0.7, n)
    north = rng.uniform(32.5, 42, n)
    east = -124 + (42 - north) * 0.9 + rng.normal(0, 1.2, n)
    coast = np.abs(east + 124 - (42 - north) * 0.75)
    cities = [(34.0, -118.2, 0.35), (37.7, -122.2, 0.45)]
    near = sum(gain * np.exp(-((north - a) ** 2 + (east - b) ** 2) / 1.3) for a, b, gain in cities)
    value = 0.9 + 0.42 * income + 0.008 * age - 0.35 * np.log(people) - 0.25 * coast + near + 0.1 * np.log(rooms)
    x = np.stack((income, age, rooms, people, north, east, residents), 1)
    return x, np.clip(value * np.exp(rng.normal(0, 0.22, n)), 0.15, 5.0)


def data_sets() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    x, mpg = autompg_data()
    return {
        "boston": boston_housing_data(),
        "auto-mpg": (x[:, :-1], mpg),  # the last column held names
        "diabetes": load_diabetes(return_X_y=True),
        "california-like": california_like(),
        "friedman 1": make_friedman1(500, noise=1.0, random_state=0),
        "friedman 2": make_friedman2(500, noise=125.0, random_state=0),
        "friedman 3": make_friedman3(500, noise=0.1, random_state=0),
        "digits": load_digits(return_X_y=True),
    }


def splits(rows: int, count: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    for seed in range(count):
        order = np.random.default_rng(seed).permutation(rows)
        yield seed, order[: round(0.9 * rows)], order[round(0.9 * rows) :]


# ---- the tuned setting ----------------------------------------------------------------------------------------------
def tuned(x: np.ndarray, y: np.ndarray, seed: int, classes: int) -> tuple[float, int]:
    """The best sigma_v and number of epochs by cross-validation; all folds and sigmas are trained side by side."""
    members = [(sigma, fold) for sigma in SIGMAS for fold in range(FOLDS)]
    tree = class_tree(classes) if classes else None
    units, rows, count = tree.len if tree else 1, len(x), len(members)
    tagi.manual_seed(seed)
    net = network_of((x.shape[1], HIDDEN, units), "relu", members=count)
    fold_of = torch.from_numpy(np.random.default_rng(seed).permutation(rows) % FOLDS)
    held = fold_of[:, None] == torch.tensor([fold for _, fold in members])  # (row, member)
    inputs, noise = torch.from_numpy(x).double(), torch.tensor([[sigma**2] for sigma, _ in members]).double()
    if tree is None:
        seen, at = torch.from_numpy(y).double()[:, None], None
    else:
        seen = torch.from_numpy(tree.obs).double().reshape(classes, -1)[torch.from_numpy(y)]
        at = torch.from_numpy(tree.idx).long().reshape(classes, -1)[torch.from_numpy(y)]
        at = at[:, None] + units * torch.arange(count)[:, None]
    step = nn.TrainStep(net, "indices" if tree else "all")
    generator, best = torch.Generator().manual_seed(seed), (-np.inf, 0.0, 0)
    for epoch in range(1, MOST_EPOCHS + 1):
        net.train()
        for batch in torch.randperm(rows, generator=generator).split(round(BATCH * FOLDS / (FOLDS - 1))):
            values = torch.where(held[batch][:, :, None], torch.nan, seen[batch][:, None])  # (row, member, observation)
            step(inputs[batch], values, noise.expand_as(values), None if at is None else at[batch])
        mu, var = net.eval()(inputs)
        for likelihood, sigma in held_out_likelihoods(mu, var, y, held, members, tree):
            if likelihood > best[0]:
                best = likelihood, sigma, epoch
        if epoch - best[2] >= PATIENCE:
            break
    return best[1], best[2]


def held_out_likelihoods(
    mu: Tensor, var: Tensor, y: np.ndarray, held: Tensor, members: list[tuple[float, int]], tree: object
) -> Iterator[tuple[float, float]]:
    """(mean log-likelihood of all rows when held out, sigma) for each sigma."""
    for sigma in SIGMAS:
        total = 0.0
        for place, (own, _) in enumerate(members):
            if own != sigma:
                continue
            rows = held[:, place]
            if tree is None:
                spread = (var[rows, place, 0] + sigma**2).double()
                apart = torch.from_numpy(y)[rows] - mu[rows, place, 0]
                total += float((-0.5 * torch.log(2 * np.pi * spread) - 0.5 * apart**2 / spread).sum())
            else:
                p = class_probabilities(mu[rows, place], var[rows, place], tree)
                total += float(torch.log((p / p.sum(1, keepdim=True)).gather(1, torch.from_numpy(y)[rows, None])).sum())
        yield total / len(y), sigma


# ---- one split ------------------------------------------------------------------------------------------------------
def regression(x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, seed: int) -> tuple[Score, Score]:
    model = TAGIRegressor((HIDDEN,), "relu", batch_size=BATCH, max_epochs=100, random_state=seed).fit(
        x[train], y[train]
    )
    inputs = model.scale_x_.standardise(torch.from_numpy(x[train])).numpy()
    targets = (y[train] - y[train].mean()) / y[train].std()
    sigma, epochs = tuned(inputs, targets, seed, 0)
    tagi.manual_seed(seed)
    net = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    best = tagi.Regressor(net, sigma).fit(x[train], y[train], epochs=epochs, batch_size=BATCH, progress=False)
    return tuple(  # type: ignore[return-value]
        Score(
            tagi.metric.rmse(p.mean, y[test]),
            tagi.metric.log_likelihood(p.mean, y[test], p.std),
            tagi.metric.coverage(p.mean, y[test], p.std),
        )
        for p in (model.predictive(x[test]), best.predict(x[test]))
    )


def classification(x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, seed: int) -> tuple[Score, Score]:
    classes = int(y.max()) + 1
    model = TAGIClassifier((HIDDEN,), "relu", batch_size=BATCH, max_epochs=100, random_state=seed).fit(
        x[train], y[train]
    )
    inputs = model.scale_x_.standardise(torch.from_numpy(x)).numpy()
    sigma, epochs = tuned(inputs[train], y[train], seed, classes)
    tagi.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, tagi.Classifier.outputs_for(classes))
    )
    best = tagi.Classifier(net, classes, sigma).fit(
        inputs[train], y[train], epochs=epochs, batch_size=BATCH, progress=False
    )
    rows, out = np.arange(len(test)), []
    for p in (model.predict_proba(x[test]), best.predict(inputs[test]).probability):
        out.append(Score(float((p.argmax(1) != y[test]).mean()), float(np.log(p[rows, y[test]]).mean()), float("nan")))
    return out[0], out[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--verbose", action="store_true", help="a line for each split, on the error stream")
    given = parser.parse_args()
    torch.set_num_threads(1)
    columns = "RMSE or error", "tuned", "log-likelihood", "tuned", "95 % interval", "tuned", "goals", "seconds"
    table = Table("data", *columns, title=f"means over {given.splits} splits")
    for name, (x, y) in data_sets().items():
        if given.only and name not in given.only:
            continue
        start, run = time.process_time(), classification if name == "digits" else regression
        pairs = []
        for seed, train, test in splits(len(x), given.splits):
            pairs.append(run(x, y, train, test, seed))
            if given.verbose:
                print(name, seed, *(f"{v:.4g}" for side in pairs[-1] for v in side), file=sys.stderr, flush=True)
        ours, best = (np.array(side).mean(0) for side in zip(*pairs, strict=True))
        met = ours[0] <= 1.1 * best[0] and ours[1] >= best[1] - 0.1 and not (ours[2] < 0.9 or ours[2] > 0.98)
        shown = [f"{v:.3g}" for pair in zip(ours[:2], best[:2], strict=True) for v in pair]
        cover = [f"{side[2]:.1%}" for side in (ours, best)] if name != "digits" else ["", ""]
        table.add_row(name, *shown, *cover, "met" if met else "missed", f"{time.process_time() - start:.0f}")
    Console(width=120).print(table)
    print("TAGI as published, on Boston: RMSE 2.98, log-likelihood -2.50")


if __name__ == "__main__":
    main()
