"""Train MONAI's 3-D U-Net on four workers under a memory limit that is too low for the sequential step.

    pip install -e '.[zoo]'; python examples/unet3d.py

Each process limits its own data segment (RLIMIT_DATA). One process with the whole volume runs out of memory; four with
a quarter each do not.
"""

import resource
import sys

import torch
from torch.nn import functional as F

import gridwise

SIDE, STEPS = 112, 3
ROOM = 600 << 20
"""Bytes that a process may allocate beyond what it has when training starts."""


def limit() -> None:
    """Allow this process at most `ROOM` more bytes from now on."""
    with open("/proc/self/statm") as file:
        data = int(file.read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + ROOM, resource.RLIM_INFINITY))


def unet() -> torch.nn.Module:
    from monai.networks.nets import UNet

    torch.manual_seed(0)
    return UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(16, 32, 64), strides=(2, 2), num_res_units=2)


def volume() -> tuple[torch.Tensor, torch.Tensor]:
    """A noisy cube with a ball in it, and the labels of the ball."""
    z = torch.linspace(-1, 1, SIDE)
    inside = (z[:, None, None] ** 2 + z[:, None] ** 2 + z**2 < 0.5).float()[None, None]
    return inside + 0.5 * torch.randn(inside.shape, generator=torch.Generator().manual_seed(1)), inside.squeeze(
        1
    ).long()


def train(loss: torch.nn.Module, parameters: list[torch.nn.Parameter], x: torch.Tensor, y: torch.Tensor) -> list[float]:
    optimizer, losses = torch.optim.SGD(parameters, lr=0.1), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(x, y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def alone() -> str:
    """Sequential training, in its own process."""
    torch.set_num_threads(1)
    model, (x, y) = unet(), volume()
    limit()
    try:
        return f"trained: {train(lambda x, y: F.cross_entropy(model(x), y), list(model.parameters()), x, y)}"
    except (RuntimeError, MemoryError) as error:
        return f"out of memory: {str(error).splitlines()[0][:80]}"


def main() -> list[float]:
    """The same training on a grid; each worker has a quarter of the volume."""
    torch.set_num_threads(1)
    world, model, (x, y) = gridwise.world(), unet(), volume()
    P_x = world.grid(1, 1, 1, 2, 2)
    P_y = world.grid(1, 1, 2, 2)
    loss = gridwise.distribute(lambda x, y: F.cross_entropy(model(x), y), P_x, y=P_y)
    mine, label = (t[gridwise.local_slice(P, t.shape)].clone() for t, P in ((x, P_x), (y, P_y)))
    limit()
    return train(loss, list(model.parameters()), mine, label)


if __name__ == "__main__":
    if gridwise.world().size > 1:
        print(main())
    else:
        said = gridwise.launch(alone, workers=1)[0]
        losses = gridwise.launch(main, workers=4)[0]
        print(
            f"one process, {SIDE}^3 voxels: {said}\nfour workers: losses {', '.join(f'{loss:.4f}' for loss in losses)}"
        )
        sys.exit(0 if said.startswith("out of memory") and losses[-1] < losses[0] else "not as it should be")
