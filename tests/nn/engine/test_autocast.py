"""Mixed precision: under autocast, layers, losses and a training step with a scaler equal torch's under the same autocast."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gridwise
import gridwise.optim
from gridwise.testing import workers

GRIDS = {1: [(1, 1, 1, 1)], 2: [(1, 1, 2, 1), (2, 1, 1, 1), (1, 2, 1, 1)], 4: [(1, 1, 2, 2), (1, 2, 1, 2)]}
TOLERANCE = 3e-2
"""Of the largest value: sums in another order, rounded to 8 bits."""

LAYERS: dict[str, tuple[type[nn.Module], tuple, dict[str, Any]]] = {
    "Conv2d": (nn.Conv2d, (4, 6, 3), {"padding": 1}),
    "ConvTranspose2d": (nn.ConvTranspose2d, (4, 6, 3), {"stride": 2}),
    "Linear": (nn.Linear, (5, 7), {}),
    "BatchNorm2d": (nn.BatchNorm2d, (4,), {}),
    "InstanceNorm2d": (nn.InstanceNorm2d, (4,), {"affine": True}),
    "GroupNorm": (nn.GroupNorm, (2, 4), {}),
    "LayerNorm": (nn.LayerNorm, ((6, 5),), {}),
    "MaxPool2d": (nn.MaxPool2d, (3, 1), {}),
    "AvgPool2d": (nn.AvgPool2d, (3, 1), {}),
    "AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d, (2,), {}),
    "Upsample": (nn.Upsample, (), {"scale_factor": 2, "mode": "bilinear"}),
    "PReLU": (nn.PReLU, (4,), {}),
}
LOSSES = {
    "MSELoss": lambda y: torch.randn(y.shape, generator=torch.Generator().manual_seed(5)),
    "L1Loss": lambda y: torch.randn(y.shape, generator=torch.Generator().manual_seed(5)),
    "SmoothL1Loss": lambda y: torch.randn(y.shape, generator=torch.Generator().manual_seed(5)),
    "BCEWithLogitsLoss": lambda y: torch.rand(y.shape, generator=torch.Generator().manual_seed(5)),
    "CrossEntropyLoss": lambda y: torch.randint(
        y.shape[1], (y.shape[0], *y.shape[2:]), generator=torch.Generator().manual_seed(5)
    ),
}


def partition(grid: tuple[int, ...]) -> Any:
    return gridwise.world().create_cartesian_topology_partition(grid)


def compared(name: str, actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype, f"{name}: {actual.dtype} instead of {expected.dtype}"
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(
        actual, expected, rtol=TOLERANCE, atol=TOLERANCE * max(1.0, largest), msg=lambda m: f"{name}: {m}"
    )


@workers(1, 2, 4, transports=("mpi",))
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_layers(name: str, given: torch.dtype, gridwise_setting: tuple[str, int]) -> None:
    kind, args, options = LAYERS[name]
    for grid in GRIDS[gridwise_setting[1]]:
        P_x = partition(grid)
        torch.manual_seed(0)
        sequential = kind(*args, **options)
        layer = getattr(gridwise.nn, f"Distributed{name}")(P_x, *args, **options)
        layer.load_state_dict(sequential.state_dict())
        x = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(1)).to(given)
        block = gridwise.local_slice(P_x, x.shape)
        whole, part = x.clone().requires_grad_(), x[block].clone().requires_grad_()
        with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
            expected, actual = sequential(whole), layer(part)
        own = gridwise.local_slice(P_x, expected.shape)
        compared("output", actual, expected[own])
        dy = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).to(expected.dtype)
        expected.backward(dy)
        actual.backward(dy[own])
        compared("input gradient", part.grad, whole.grad[block])
        for key, parameter in sequential.named_parameters():
            mine = getattr(layer, key)
            compared(
                f"gradient of {key}", mine.grad, parameter.grad[mine.block.slices] if mine.block else parameter.grad
            )


@workers(1, 2, 4, transports=("mpi",))
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(name: str, reduction: str, gridwise_setting: tuple[str, int]) -> None:
    for grid in GRIDS[gridwise_setting[1]]:
        P_x = partition(grid)
        y = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(1)).bfloat16()
        target = LOSSES[name](y)
        block = gridwise.local_slice(P_x, y.shape)
        own = block if target.dim() == 4 else block[:1] + block[2:]
        whole, part = y.clone().requires_grad_(), y[block].clone().requires_grad_()
        with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
            expected = getattr(nn, name)(reduction=reduction)(whole, target)
            actual = getattr(gridwise.nn, f"Distributed{name}")(P_x, reduction=reduction)(part, target[own])
        if reduction == "none":
            if actual.numel():  # where classes are cut, the first worker along them has the losses
                compared("loss", actual, expected[own])
            assert actual.dtype == expected.dtype
        else:
            assert actual.dtype == expected.dtype, f"{actual.dtype} instead of {expected.dtype}"
            torch.testing.assert_close(actual, expected, rtol=2e-2, atol=1e-2)
        if reduction != "none":
            expected.backward()
            actual.backward()
            compared("gradient", part.grad, whole.grad[block])


class UNet(nn.Module):
    """One level, with everything that a larger one has: norms, a pool, a transposed convolution, a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.below = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(6, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU())
        self.up, self.leave = nn.ConvTranspose2d(12, 6, 2, 2), nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return self.leave(torch.cat([x, self.up(self.below(x))], 1))


@workers(2)
def test_autocast_that_is_not_the_same_on_all_workers_is_refused_by_all() -> None:
    P, rows = (gridwise.world().create_cartesian_topology_partition(shape) for shape in ([1, 1, 2, 1], [2, 1]))
    x = torch.ones(2, 4, 3, 5)
    mine = {0: {"enabled": False}, 1: {"dtype": torch.bfloat16}}[P.rank]
    for name in ("Conv2d", "Linear", "BatchNorm2d", "GroupNorm", "MaxPool2d"):
        layer = getattr(gridwise.nn, f"Distributed{name}")(rows if name == "Linear" else P, *LAYERS[name][1])
        block = x[0, 0] if name == "Linear" else x
        layer(block)
        told = r"(?s)not in the same mode.*worker 0: autocast: off.*worker 1: autocast: torch.bfloat16 on cpu"
        with pytest.raises(gridwise.errors.PartitionError, match=told), torch.autocast("cpu", **mine):
            layer(block)
        with (
            torch.autocast("cpu", torch.bfloat16 if P.rank else torch.float16),
            pytest.raises(gridwise.errors.PartitionError, match=r"(?s)worker 0: autocast: torch.float16 on cpu"),
        ):
            layer(block)


@workers(1, 2, 4, transports=("mpi",))
def test_steps_of_a_unet_with_a_scaler(gridwise_setting: tuple[str, int]) -> None:
    """An infinity in the gradient of one worker skips the step on all, as it would in the sequential program."""
    world = gridwise.world()
    P_x = partition({1: (1, 1, 1, 1), 2: (1, 1, 2, 1), 4: (1, 1, 2, 2)}[gridwise_setting[1]])
    torch.manual_seed(0)
    sequential = UNet()
    model = gridwise.distribute(copy.deepcopy(sequential), P_x)
    losses = nn.CrossEntropyLoss(), gridwise.nn.DistributedCrossEntropyLoss(P_x)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (sequential, model)]
    options = {"init_scale": 256.0, "growth_interval": 2}
    kinds, device = (torch.amp.GradScaler, gridwise.optim.GradScaler), torch.get_default_device().type
    scalers = [kind(device, **options) for kind in kinds]
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(2, 2, 12, 10, generator=generator)
        target = torch.randint(3, (2, 12, 10), generator=generator)
        block = gridwise.local_slice(P_x, x.shape)
        overflows = step == 2
        before = [p.detach().clone() for p in model.parameters()]
        values = []
        for network, loss, optimizer, scaler, (part, wanted) in zip(
            (sequential, model),
            losses,
            optimizers,
            scalers,
            ((x, target), (x[block], target[block[:1] + block[2:]])),
            strict=True,
        ):
            optimizer.zero_grad()
            with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
                y = network(part)
                value = loss(y, wanted)
            assert y.dtype == torch.bfloat16
            scaler.scale(value).backward()
            values.append(value.detach())
            if overflows and (network is sequential or world.rank == world.size - 1):
                next(iter(network.parameters())).grad.view(-1)[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        torch.testing.assert_close(values[1], values[0], rtol=2e-2, atol=1e-2)
        assert scalers[0].get_scale() == scalers[1].get_scale(), step
        stayed = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert stayed == overflows
    for mine, whole in zip(model.parameters(), sequential.parameters(), strict=True):
        torch.testing.assert_close(mine.as_subclass(Tensor).data, whole.data, rtol=5e-2, atol=2e-2)
    gridwise.check_replicas(model)
