"""A distributed model has the parameters of the model that was given: what holds them already still does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise.errors import PartitionError
from gridwise.testing import workers


def partition(*grid: int) -> Any:
    return gridwise.world().create_cartesian_topology_partition(grid)


def block(x: Tensor, P: Any) -> Tensor:
    return x[gridwise.local_slice(P, x.shape)].clone()


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Head(nn.Module):
    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x).relu())


def heads() -> tuple[Head, Head]:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4))
    return Head(trunk).double(), Head(trunk).double()


@workers(2, transports=("mpi",))
def test_an_optimiser_that_was_made_before_moves_the_model() -> None:
    (sequential, _), x, P = heads(), random(3, 2, 6, 4), partition(1, 1, 2, 1)
    twin = copy.deepcopy(sequential)
    # a bias before a batch norm has no gradient but rounding, which a smaller eps would make a step of 0.1
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1, eps=1e-3) for m in (sequential, twin)]
    model = gridwise.distribute(sequential, P)
    assert all(p is q for p, q in zip(model.parameters(), sequential.parameters(), strict=True))
    for _ in range(2):
        for optimizer, each, given in zip(optimizers, (model, twin), (block(x, P), x), strict=True):
            optimizer.zero_grad()
            each(given).square().sum().backward()
            optimizer.step()
    for mine, whole in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(mine.as_subclass(Tensor), whole)
    torch.testing.assert_close(sequential.eval()(x), twin.eval()(x))


@workers(2, transports=("mpi",))
def test_models_that_share_a_part_are_tied() -> None:
    sequential, x, P = heads(), random(3, 2, 6, 4), partition(1, 1, 2, 1)
    twins = copy.deepcopy(sequential)
    models = [gridwise.distribute(each, P) for each in sequential]
    optimizers = [torch.optim.SGD(nn.ModuleList(each).parameters(), lr=0.1) for each in (models, twins)]
    for _ in range(3):
        for optimizer, pair, given in zip(optimizers, (models, twins), (block(x, P), x), strict=True):
            optimizer.zero_grad()
            (pair[0](given).square().sum() + pair[1](given).sin().sum()).backward()
            optimizer.step()
    for mine, whole in zip(models, twins, strict=True):
        for (name, value), expected in zip(mine.state_dict().items(), whole.state_dict().values(), strict=True):
            torch.testing.assert_close(value.as_subclass(Tensor), expected, msg=name)


@workers(2, transports=("mpi",))
def test_hooks_of_parameters_see_whole_gradients() -> None:
    (sequential, _), x, P, seen = heads(), random(3, 2, 6, 4), partition(1, 1, 2, 1), list[Tensor]()
    twin = copy.deepcopy(sequential)
    sequential.head.weight.register_hook(lambda g: seen.append(g.clone()) or 2 * g)
    sequential.head.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    gridwise.distribute(sequential, P)(block(x, P)).square().sum().backward()
    twin(x).square().sum().backward()
    for g, p in zip(sorted(seen, key=Tensor.dim), (twin.head.bias, twin.head.weight), strict=True):
        torch.testing.assert_close(g, p.grad)
    torch.testing.assert_close(sequential.head.weight.grad, 2 * twin.head.weight.grad)


@workers(3, transports=("mpi",))
def test_workers_outside_hold_nothing() -> None:
    world = gridwise.world()
    P = world.create_partition_inclusive([0, 1]).create_cartesian_topology_partition((1, 1, 2, 1))
    (sequential, other), twin = heads(), heads()[0]
    optimizer = torch.optim.Adam(sequential.parameters())
    models = [gridwise.distribute(each, P) for each in (sequential, other)]
    assert models[0].trunk[0].weight is models[1].trunk[0].weight is sequential.trunk[0].weight
    assert all((p.numel() > 0) == P.active for p in sequential.parameters())
    x = block(random(3, 2, 6, 4), P) if P.active else gridwise.zero_volume_tensor(dtype=torch.float64)
    models[0](x).sum().backward()
    optimizer.step()
    gridwise.check_replicas(models[0])
    models[1].load_state_dict(twin.state_dict())
    gridwise.check_replicas(models[0])
    with pytest.raises(
        PartitionError, match=r"`trunk.0.weight` of Head belongs to a model on workers \[0, 1\] already"
    ):
        gridwise.distribute(other, partition(1, 1, 3, 1))


@workers(3, transports=("mpi",))
def test_deferred_parameters_are_made_once() -> None:
    world = gridwise.world()
    P = world.create_partition_inclusive([0, 1]).create_cartesian_topology_partition((1, 1, 2, 1))
    sequential, other = gridwise.deferred_init.deferred_init(heads)
    models = [gridwise.distribute(each, P) for each in (sequential, other)]
    for own, tied, expected in zip(
        models[0].trunk.parameters(), models[1].trunk.parameters(), heads()[0].parameters(), strict=False
    ):
        assert own is tied
        if P.active:
            torch.testing.assert_close(own.as_subclass(Tensor), expected.as_subclass(Tensor))
        else:
            assert not own.numel()
    assert models[0].trunk[0].weight is sequential.trunk[0].weight


class Trainer(nn.Module):
    """Keeps functions of itself, as a LightningModule might."""

    def __init__(self, P: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = gridwise.distribute(lambda x: self.net(x).square().mean(), P)
        self.net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)).double()
        self.second = gridwise.distribute(self.error, P)
        self.part = gridwise.distribute(nn.Conv2d(4, 2, 1).double(), P)
        self.third = gridwise.distribute(lambda x: self.part(self.net(x)).abs().mean(), P)

    def error(self, x: Tensor) -> Tensor:
        return self.net(x).abs().mean()


@workers(2, transports=("mpi",))
def test_a_function_may_be_kept_on_the_module_that_it_calls() -> None:
    P, x = partition(1, 1, 2, 1), random(3, 2, 6, 4)
    trainer = Trainer(P)
    net, part = copy.deepcopy(trainer.net), nn.Conv2d(4, 2, 1).double()
    part.load_state_dict(trainer.part.state_dict())
    for mode in (True, False):
        trainer.train(mode)
        assert {m.training for m in trainer.modules()} == {mode}
        net.train(mode)
        for name, function in {
            "first": lambda: net(x).square().mean(),
            "second": lambda: net(x).abs().mean(),
            "third": lambda: part(net(x)).abs().mean(),
        }.items():
            y, expected = getattr(trainer, name)(block(x, P)), function()
            torch.testing.assert_close(y, expected)
            y.backward()
            expected.backward()
    for p, q in zip(trainer.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    names = [f"net.{name}" for name in net.state_dict()] + [f"part.{name}" for name in part.state_dict()]
    assert list(trainer.state_dict()) == names
    assert [p for p, _ in trainer.named_parameters()] == [
        name for name in names if "running" not in name and "num" not in name
    ]
    trainer.load_state_dict(trainer.state_dict())
    assert {*trainer.second.parameters()} == {*trainer.parameters()}
    assert len([*trainer.first.buffers()]) == 3
    trainer.float().zero_grad()
    trainer.apply(lambda module: None)
    assert trainer.first(block(x, P).float()).dtype == torch.float32
