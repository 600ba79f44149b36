"""A noisy sine: an LSTM that looks ahead, and the smoother that looks back.

Run: python examples/tagi_series.py      (a plot is saved under out/)
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

import gridwise.tagi as tagi
import gridwise.tagi.nn as nn
from gridwise.tagi import metric, plots

PERIOD, WINDOW, LEARN, ALL = 24, 12, 180, 240


def look_ahead(series: np.ndarray) -> tuple[tagi.Prediction, tagi.Prediction]:
    net = nn.Sequential(nn.LSTM(1, 8, WINDOW), nn.LSTM(8, 8, WINDOW), nn.Linear(8 * WINDOW, 1))
    model = tagi.Forecaster(net, WINDOW, sigma_v=lambda e: tagi.exponential_scheduler(0.3, 0.1, 0.9, e))
    model.fit(series[:LEARN], epochs=15, batch_size=8)
    return model.predict(series[LEARN - WINDOW :]), model.forecast(series[:LEARN], ALL - LEARN)


def look_back(series: np.ndarray, hidden: slice) -> tagi.Prediction:
    """Feed the series, with a gap, one value at a time; then smooth."""
    net = nn.Sequential(nn.SLSTM(1, 20), nn.SLinear(20, 1))
    updater = nn.OutputUpdater()
    seen = series.copy()
    seen[hidden] = np.nan
    for epoch in range(20):
        net.reset_lstm_states()
        noise = tagi.exponential_scheduler(1.0, 0.1, 0.85, epoch) ** 2
        last = 0.0
        for value in seen:
            mean, _ = net(np.array([last], np.float32))
            observed = np.array([value])
            updater.update(net.output_z_buffer, observed, np.array([noise]), net.input_delta_z_buffer)
            net.backward()
            net.step()
            last = float(mean[0]) if np.isnan(value) else value
    mean, var = net.smoother()
    return tagi.Prediction(mean, np.sqrt(var + noise), np.sqrt(var))


def main() -> None:
    series = np.sin(2 * np.pi * np.arange(ALL) / PERIOD) + 0.05 * np.random.default_rng(0).standard_normal(ALL)
    tagi.manual_seed(0)
    (one, many), future = look_ahead(series), series[LEARN:]
    for name, p in (("one step ahead", one), (f"{ALL - LEARN} steps ahead", many)):
        cover = metric.coverage(p.mean, future, p.std)
        print(f"{name}: RMSE {metric.rmse(p.mean, future):.3f}, 95 % intervals hold {cover:.0%}")
    gap = slice(100, 112)
    smooth = look_back(series[:LEARN], gap)
    print(f"smoothed, in a gap of 12 values: RMSE {metric.rmse(smooth.mean[gap], series[gap]):.3f}")
    fig, (top, bottom) = plt.subplots(2, 1, figsize=(8, 7))
    plots.plot_intervals(np.arange(LEARN, ALL), many, future, ax=top).set(title="forecast")
    plots.plot_intervals(np.arange(LEARN), smooth, series[:LEARN], ax=bottom).set(title="smoothed; 100 to 111 unseen")
    Path("out").mkdir(exist_ok=True)
    fig.savefig("out/tagi_series.png", dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
