"""What calls of a converted model agree on, plan and give; and what it refuses."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.models.model import runner_of
from gridwise.testing import workers

from .whole_models import UNet, train_both


@workers(3)
def test_a_worker_outside_and_unbalanced_blocks() -> None:
    P_x = gridwise.world().create_partition_inclusive([0, 1]).create_cartesian_topology_partition((1, 1, 2, 1))
    sequential = UNet().double()
    model = gridwise.distribute(copy.deepcopy(sequential), P_x)
    x = torch.randn(1, 2, 12, 8, dtype=torch.float64)
    rows = {0: slice(0, 9), 1: slice(9, 12)}.get(gridwise.world().rank, slice(0, 0))
    y = model(x[:, :, rows].clone() if P_x.active else gridwise.zero_volume_tensor(dtype=torch.float64))
    y.square().sum().backward()
    whole = sequential(x)
    whole.square().sum().backward()
    assert y.numel() == 0 or torch.allclose(y, whole[gridwise.local_slice(P_x, whole.shape)])
    if P_x.active:
        torch.testing.assert_close(model.inc[0].weight.grad, sequential.inc[0].weight.grad)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.attention = nn.Dropout(0.4), nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.drop(self.drop(x)), 0.3, training=self.training)
        return F.dropout(self.attention(x, x, x, need_weights=False)[0], p=0.2, training=True)


@workers(3)
def test_a_worker_outside_draws_as_often_as_the_others() -> None:
    world = gridwise.world()
    P_x = world.create_partition_inclusive([0, 1]).create_cartesian_topology_partition((2, 1, 1))
    torch.manual_seed(0)
    model = gridwise.distribute(Dropping(), P_x, example=(2, 3, 4))
    states = []
    for mode in (True, True, False, True):
        model.train(mode)(torch.ones(1, 3, 4) if P_x.active else gridwise.zero_volume_tensor())
        states.append(int(torch.randint(1 << 30, ())))
    assert len(set(states)) == 4
    found = np.array([*states, *(-n for n in states)])
    world.transport.all_max(found, world.transport.everyone)
    assert found.tolist() == [*states, *(-n for n in states)]


@workers(2)
def test_modes_dropout_and_agreement_once() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.drop = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Dropout2d(0.4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.drop(self.bn(self.conv(x)))
            return F.dropout(F.relu(x), 0.3, training=self.training).mean(dim=(2, 3))

    P_x = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 1))
    sequential = Net()
    model = gridwise.distribute(copy.deepcopy(sequential), P_x)
    x = torch.randn(4, 1, 8, 6)
    mine = x[gridwise.local_slice(P_x, x.shape)]
    first, second = model(mine), model(mine)
    assert not torch.equal(first, second)
    model.eval()
    sequential.load_state_dict(model.state_dict())
    sequential.eval()
    y = sequential(x)
    torch.testing.assert_close(model(mine), y[gridwise.local_slice(model.P_y, y.shape)])
    model(mine)
    calls = []
    transport = gridwise.world().transport
    counted = transport.all_max
    transport.all_max = lambda values, team, what="": (calls.append(what), counted(values, team, what))[1]
    try:
        model(mine)
    finally:
        del transport.all_max
    assert len(calls) == 1, calls


class PooledTwice(nn.Module):
    """One pool at two sizes: on two workers 3 + 3 and then 3 + 2 rows, so that only the second worker sees a change."""

    def __init__(self, kernel: int = 2) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, (kernel, 1))
        self.pool = nn.AvgPool2d(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.second(self.pool(self.first(x))))


@workers(2)
def test_a_layer_that_is_called_twice_at_sizes_of_which_one_worker_sees_a_single_one() -> None:
    torch.manual_seed(0)
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    train_both(PooledTwice().double(), P_x, (1, 2, 6, 4), classes=2, steps=4)


@workers(2)
def test_a_model_plans_each_of_its_calls_once() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    model = gridwise.distribute(PooledTwice(kernel=3), P_x)
    for _ in range(3):
        model(torch.ones(1, 2, 3, 4))
    assert runner_of(model)._plans.count == 1
    model(torch.ones(2, 2, 3, 4))
    model(torch.ones(1, 2, 3, 4))  # comes back: agreed anew, planned no more
    assert runner_of(model)._plans.count == 2


@workers(2)
def test_an_example_is_planned_for_and_no_block_of_it_is_made() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    made, empty = [], torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *args, **kwargs: (made.append(args), empty(*args, **kwargs))[1])
        model = gridwise.distribute(PooledTwice(), P_x, example=torch.empty(1, 2, 7, 4, requires_grad=True))
    assert not any((1, 2, rows, 4) in args for rows in (3, 4) for args in made)
    model(torch.ones(1, 2, 4 - gridwise.world().rank, 4, requires_grad=True))
    assert runner_of(model)._plans.count == 1
    with torch.no_grad():
        model(torch.ones(1, 2, 4 - gridwise.world().rank, 4))
    assert runner_of(model)._plans.count == 2


@workers(2)
def test_parameters_that_the_loss_does_not_see_get_no_gradient() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.used, self.unused = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 1, 1), nn.Conv2d(2, 1, 1)
            self.never = nn.Conv2d(2, 1, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.stem(x)
            return self.used(x), self.unused(x)

    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    sequential = TwoHeads().double()
    model = gridwise.distribute(copy.deepcopy(sequential), P_x)
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    sequential(x)[0].sum().backward()
    for _ in range(2):
        model.zero_grad()
        model(x[gridwise.local_slice(P_x, x.shape)])[0].sum().backward()
        for (name, mine), whole in zip(model.named_parameters(), sequential.parameters(), strict=True):
            assert (mine.grad is None) == (whole.grad is None), name
            if whole.grad is not None:
                torch.testing.assert_close(mine.grad, whole.grad)


@workers(2)
def test_what_does_not_fit_is_named() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3, padding=1)
            self.unfold = nn.Unfold(2)

        def forward(self, x: Tensor) -> Tensor:
            x = F.conv2d(x, x, padding=1)
            x = self.unfold(self.conv(x))
            x = x[x > 0]
            return torch.cdist(x, x)

    P_x = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 1))
    with pytest.raises(gridwise.errors.UnsupportedError, match=r"nonzero.* needs the numbers(.|\n)*x = x\[x > 0\]"):
        gridwise.distribute(Odd(), P_x, example=(2, 2, 6, 6))
    torch.manual_seed(gridwise.world().rank)
    unlike = nn.Conv2d(1, 1, 3)
    with pytest.warns(UserWarning, match="differ"):
        gridwise.distribute(unlike, P_x)


@workers(3, transports=("mpi",))
def test_transforms_are_refused_by_all() -> None:
    P = gridwise.world().create_partition_inclusive([0, 1]).create_cartesian_topology_partition((2, 1))
    model, x = gridwise.distribute(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), P), torch.ones(1, 2)
    weights = dict(model.named_parameters())
    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        torch.func.vmap(model)(x[None])
    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        torch.func.grad(lambda x: model(x).sum())(x)
    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        torch.func.grad(lambda w: torch.func.functional_call(model, w, (x,)).sum())(weights)
    with forward_ad.dual_level():
        with pytest.raises(UnsupportedError, match="forward-mode"):
            model(forward_ad.make_dual(x, x))
        assert model(x).sum() >= 0  # what is not differentiated is no problem


@workers(2)
def test_indices_of_another_shape_are_refused_by_all() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)

        def forward(self, x: Tensor) -> Tensor:
            y, places = self.pool(x)
            return self.unpool(self.pool(y)[0], places)

    P_x = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 1))
    model = gridwise.distribute(Mixed(), P_x)
    with pytest.raises(gridwise.errors.PartitionError, match="cannot take a global input of shape"):
        model(torch.ones(1, 1, 8, 16))
