"""The primitives and layers on CUDA tensors: several workers on one GPU, staged through the host over MPI and gloo."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise import nn
from gridwise.testing import workers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


@pytest.fixture(autouse=True)
def without_a_default_device(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--gridwise-device") != "cpu":
        pytest.skip("these tests say themselves what is on the device")


def row(dims: int, axis: int) -> gridwise.CartesianPartition:
    world = gridwise.world()
    return world.create_cartesian_topology_partition([world.size if d == axis else 1 for d in range(dims)])


@workers(1, 2, 4)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_primitives_give_what_they_give_on_the_host(dtype):
    P, Q = row(2, 0), row(2, 1)
    n = gridwise.world().size
    P_0 = gridwise.world().create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1])
    layers = [
        (nn.HaloExchange(P, [(2, 1), (0, 0)]), (3, 4)),
        (nn.Repartition(P, Q), (3, 4)),
        (nn.AllGather(P, (0,)), (3, 4)),
        (nn.ReduceScatter(P, (0,)), (2 * n, 4)),
        (nn.AllSumReduce(P, (0,)), (3, 4)),
        (nn.SumReduce(P, P_0), (3, 4)),
    ]
    for layer, shape in layers:
        x = torch.randint(-3, 4, shape).to(dtype)
        here, there = x.clone().requires_grad_(), x.cuda().requires_grad_()
        y, z = layer(here), layer(there)
        assert z.is_cuda
        assert torch.equal(z.cpu(), y)
        dy = torch.randint(-3, 4, y.shape).to(dtype)
        y.backward(dy)
        z.backward(dy.cuda())
        assert there.grad.is_cuda
        assert torch.equal(there.grad.cpu(), here.grad)


@workers(1, 2, 4)
def test_large_blocks_on_the_device():
    P, Q = row(2, 0), row(2, 1)
    x = torch.randn(512, 1024, device="cuda")
    back = nn.Repartition(Q, P)(nn.Repartition(P, Q)(x))
    assert torch.equal(back, x)
    total = nn.AllSumReduce(P, (0,))(torch.ones(1 << 20, device="cuda"))
    assert torch.equal(total, torch.full_like(total, float(P.size)))


@workers(1, 2, 4)
@pytest.mark.parametrize("name", ["conv", "transposed", "maxpool", "avgpool", "batchnorm", "upsample"])
def test_layers_equal_the_sequential_ones_on_the_device(name):
    P = row(4, 2)
    wide = {"device": "cuda", "dtype": torch.float64}
    made = {
        "conv": (
            lambda: nn.DistributedConv2d(P, 2, 3, 3, padding=1, padding_mode="circular", **wide),
            lambda: torch.nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", **wide),
        ),
        "transposed": (
            lambda: nn.DistributedConvTranspose2d(P, 2, 3, 3, stride=2, **wide),
            lambda: torch.nn.ConvTranspose2d(2, 3, 3, stride=2, **wide),
        ),
        "maxpool": (
            lambda: nn.DistributedMaxPool2d(P, 3, stride=2, padding=1),
            lambda: torch.nn.MaxPool2d(3, stride=2, padding=1),
        ),
        "avgpool": (
            lambda: nn.DistributedAvgPool2d(P, 3, stride=2, padding=1),
            lambda: torch.nn.AvgPool2d(3, stride=2, padding=1),
        ),
        "batchnorm": (lambda: nn.DistributedBatchNorm2d(P, 2, **wide), lambda: torch.nn.BatchNorm2d(2, **wide)),
        "upsample": (
            lambda: nn.DistributedUpsample(P, scale_factor=1.5, mode="bilinear"),
            lambda: torch.nn.Upsample(scale_factor=1.5, mode="bilinear"),
        ),
    }
    torch.manual_seed(0)
    layer = made[name][0]()
    torch.manual_seed(0)
    sequential = made[name][1]()
    layer.load_state_dict(sequential.state_dict())
    x = torch.randn(2, 2, 9, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).cuda()
    whole = x.clone().requires_grad_()
    block = x[gridwise.local_slice(P, x.shape)].clone().requires_grad_()
    y, z = sequential(whole), layer(block)
    torch.testing.assert_close(nn.AllGather(P, (2,))(z.detach()), y.detach())
    y.square().sum().backward()
    z.square().sum().backward()
    torch.testing.assert_close(block.grad, whole.grad[gridwise.local_slice(P, x.shape)])
    for mine, theirs in zip(layer.parameters(), sequential.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@workers(1, 2)
@pytest.mark.parametrize("layer", ["AvgPool1d", "AvgPool2d", "AvgPool3d"])
def test_averages_of_channels_last_have_the_gradients_of_the_host(layer):
    dims = int(layer[-2])
    torch.manual_seed(0)
    x = torch.randn(2, 8, *(6,) * dims).movedim(1, -1).contiguous().movedim(-1, 1)
    found = []
    for device in ("cpu", "cuda"):
        block = x.to(device).requires_grad_()
        y = getattr(nn, f"Distributed{layer}")(row(dims + 2, 2), 3, 2, 1)(block)
        for dy in (torch.ones_like(y).contiguous(), y.new_ones(()).expand(y.shape)):
            found.append(torch.autograd.grad(y, block, dy, retain_graph=True)[0].cpu())
    for gradient in found[1:]:
        assert torch.allclose(gradient, found[0], rtol=1e-5, atol=1e-6)


@workers(2)
def test_workers_without_a_part_may_bring_tensors_of_the_host():
    world = gridwise.world()
    P = row(2, 0)
    x = torch.randn(600, 500, device="cuda") if world.rank == 0 else None
    block = gridwise.scatter(x, P)
    assert block.is_cuda
    back = gridwise.gather(block, P)
    if world.rank == 0:
        assert torch.equal(back, x)
    mixed = torch.ones(300, 500, device="cuda" if world.rank == 0 else "cpu")
    with pytest.raises(gridwise.errors.PartitionError, match="one kind of device"):
        nn.AllGather(P, (0,))(mixed)


@workers(1, 2)
def test_an_optimiser_takes_all_blocks_in_a_few_kernels():
    layers = [nn.DistributedConv2d(row(4, 2), 2, 2, 1, device="cuda") for _ in range(8)]
    parameters = [p for layer in layers for p in layer.parameters()]
    for p in parameters:
        p.grad = torch.ones_like(p)
    plain = [torch.nn.Parameter(p.detach().clone().as_subclass(torch.Tensor)) for p in parameters]
    for p in plain:
        p.grad = torch.ones_like(p)
    counts = []
    for given in (parameters, plain):
        optimizer = torch.optim.SGD(given, lr=0.5)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as seen:
            optimizer.step()
        counts.append(sum(event.count for event in seen.key_averages() if event.key.startswith("aten::_foreach_add")))
    assert counts[0] == counts[1] > 0
    assert all(map(torch.equal, parameters, plain))
