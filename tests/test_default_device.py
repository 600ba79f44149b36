"""Under `torch.set_default_device`, buffers of the host stay on the host; any that did not would fail with "meta"."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise import checkpoint, nn
from gridwise.testing import check_adjoint, workers

DOUBLE = {"dtype": torch.float64, "device": "cpu"}

LAYERS = {
    "halo": lambda P: nn.HaloExchange(P, [(0, 0), (0, 0), (1, 2), (0, 0)]),
    "all-gather": lambda P: nn.AllGather(P, (2,)),
    "all-reduce": lambda P: nn.AllSumReduce(P, (2,)),
    "reduce-scatter": lambda P: nn.ReduceScatter(P, (2,)),
    "conv": lambda P: nn.DistributedConv2d(P, 2, 3, 3, padding=1, padding_mode="reflect", **DOUBLE),
    "transposed conv": lambda P: nn.DistributedConvTranspose2d(P, 2, 3, 3, stride=2, **DOUBLE),
    "batch norm": lambda P: nn.DistributedBatchNorm2d(P, 2, **DOUBLE),
    "group norm": lambda P: nn.DistributedGroupNorm(P, 1, 2, **DOUBLE),
    "layer norm": lambda P: nn.DistributedLayerNorm(P, (6, 4), elementwise_affine=False),
    "max pool": lambda P: nn.DistributedMaxPool2d(P, 3, 2, 1),
    "average pool": lambda P: nn.DistributedAvgPool2d(P, 3, 2, 1, ceil_mode=True),
    "adaptive pool": lambda P: nn.DistributedAdaptiveAvgPool2d(P, 3),
    "nearest": lambda P: nn.DistributedUpsample(P, scale_factor=2.0),
    "bicubic": lambda P: nn.DistributedUpsample(P, scale_factor=1.5, mode="bicubic"),
    "dropout": lambda P: nn.DistributedDropout(P, 0.5),
    "prelu": lambda P: nn.DistributedPReLU(P, 2, **DOUBLE),
}


@workers(2)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    world = gridwise.world()
    P = world.create_cartesian_topology_partition([1, 1, world.size, 1])
    x = torch.randn(2, 2, 6 // world.size, 4, dtype=torch.float64)
    found = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        block = x.clone().requires_grad_()
        with torch.device(device):
            layer = LAYERS[name](P)
            y = layer(block)
            (first,) = torch.autograd.grad(y.square().sum(), block, create_graph=True)
            first.square().sum().backward()
        found.append((y.detach(), first.detach(), block.grad, *(p.grad for p in layer.parameters())))
    for mine, other in zip(*found, strict=True):
        assert torch.equal(mine, other)


@workers(1, 2)
def test_training_and_checkpoints(tmp_path):
    world = gridwise.world()
    P = world.create_cartesian_topology_partition([world.size, 1])
    x, target = torch.randn(6 // world.size, 4), torch.randn(6 // world.size, 3)
    with torch.device("meta"):
        model = gridwise.distribute(torch.nn.Sequential(torch.nn.Linear(4, 3, device="cpu"), torch.nn.Tanh()), P)
        optimiser = torch.optim.SGD(
            model.parameters(), 1e-3, momentum=0.9
        )  # torch 2.11 puts the steps of Adam on `meta`
        losses = []
        for step in range(3):
            loss = nn.DistributedMSELoss(P)(model(x), target)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            losses.append(float(loss))
            if step == 1:
                checkpoint.async_save(tmp_path / "a", {"model": model, "optim": optimiser}).wait()
        checkpoint.save(tmp_path / "b", {"model": model})
        checkpoint.load(tmp_path / "a", {"model": model, "optim": optimiser})
        assert float(nn.DistributedMSELoss(P)(model(x), target)) == losses[2]
        assert not checkpoint.load(tmp_path / "b")["model"]["0.weight"].is_meta
        with pytest.raises(gridwise.errors.PartitionError, match="worker"):
            model(torch.randn(2, 7, 3, device="cpu"))
    check_adjoint(nn.AllGather(P, (0,)), torch.randn(2, 2))


def test_deferred_modules():
    expected = {}
    for device in ("cpu", "meta"):
        with torch.device(device):
            torch.manual_seed(3)
            module = gridwise.deferred_init.deferred_init(torch.nn.Linear, 100, 30, device="cpu")
            gridwise.deferred_init.materialize_module(module)
        expected[device] = module
    assert torch.equal(expected["cpu"].weight, expected["meta"].weight)
    assert torch.equal(expected["cpu"].bias, expected["meta"].bias)
