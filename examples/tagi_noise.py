"""Noise that depends on the input, learnt along with the mean.

Run: python examples/tagi_noise.py      (a plot is saved under out/)
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

import gridwise.tagi as tagi
import gridwise.tagi.nn as nn
from gridwise.tagi import metric, plots


def sample(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = rng.uniform(-1, 1, (n, 1))
    return x, -((x + 0.5) ** 3) * np.sin(6 * x) + (0.05 + 0.45 * (x + 0.5) ** 2) * rng.standard_normal((n, 1))


def main() -> None:
    rng = np.random.default_rng(0)
    (x, y), (x_test, y_test) = sample(800, rng), sample(400, rng)
    tagi.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2), nn.EvenExp())
    model = tagi.Regressor(net, heteroscedastic=True).fit(x, y, epochs=30, batch_size=10)
    p = model.predict(x_test)
    print(f"log-likelihood {metric.log_likelihood(p.mean, y_test, p.std):.2f}")
    print(f"95 % intervals hold {metric.coverage(p.mean, y_test, p.std):.0%} of the test points")
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    plots.plot_intervals(x_test, p, y_test, ax=left).set(xlabel="x", ylabel="y")
    plots.plot_calibration(p, y_test, ax=right)
    Path("out").mkdir(exist_ok=True)
    fig.savefig("out/tagi_noise.png", dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
