"""Plans that come back, models that follow their script, and workers that are not in the same mode."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gridwise
from gridwise.errors import PartitionError, UnsupportedError
from gridwise.models.model import runner_of
from gridwise.nn.engine.plans import PLANS_KEPT
from gridwise.testing import workers


def rows(count: int = 2, ranks: list[int] | None = None) -> gridwise.CartesianPartition:
    world = gridwise.world()
    some = world if ranks is None else world.create_partition_inclusive(ranks)
    return some.create_cartesian_topology_partition([1, 1, count, 1])


def block(x: torch.Tensor, P: gridwise.CartesianPartition) -> torch.Tensor:
    return x[gridwise.local_slice(P, x.shape)].clone()


class Counted(gridwise.nn.DistributedAvgPool2d):
    """Says how often it was planned, and may keep its plans though it overrides the contract."""

    _keeps_plans = True
    planned = 0

    def _distdl_module_setup(self, input: tuple) -> None:
        type(self).planned += 1
        super()._distdl_module_setup(input)


@workers(2, 3)
def test_sizes_that_alternate_where_one_worker_sees_no_change_are_planned_once_each():
    P, Counted.planned = rows(gridwise.world().size), 0
    layer, sequential = Counted(P, 3, 1, 1), nn.AvgPool2d(3, 1, 1)
    for k in range(6):  # on 2 workers 4 + 4 and 4 + 3 rows
        x = torch.arange(4.0 * (8 - k % 2)).view(1, 1, 8 - k % 2, 4)
        torch.testing.assert_close(layer(block(x, P)), block(sequential(x), P))
    assert Counted.planned == 2


@workers(2)
def test_a_users_subclass_that_keeps_more_than_attributes_is_set_up_anew():
    class Weighted(gridwise.nn.DistributedLinear):
        def _distdl_module_setup(self, input: tuple) -> None:
            super()._distdl_module_setup(input)
            self.register_buffer("rows", torch.arange(float(input[0].shape[0])), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.rows.view(-1, 1)

    P = gridwise.world().create_cartesian_topology_partition([2, 1])
    layer = Weighted(P, 2, 2)
    for n in (4, 5, 4):
        assert layer(torch.ones(n, 2)).shape == (n, 2)
    assert not layer._keeps_plans
    assert layer._plans.find(layer._structure_of((torch.ones(4, 2),))) is None


@workers(2)
def test_a_layer_that_is_told_to_is_set_up_again():
    P, Counted.planned = rows(), 0
    layer = Counted(P, 3, 1, 1)
    for _ in range(2):
        layer(torch.ones(1, 1, 2, 4))
        layer._distdl_is_setup = False
    assert Counted.planned == 2


DIFFERENCES = {
    "frozen": "worker 1: 0.bias: torch.float32, frozen",
    "swapped": "worker 1: 0.bias: torch.float32, 2.bias: torch.float32, frozen",
    "tracking": "worker 1: 1.track_running_stats: False",
    "eval": "worker 1: itself: eval(), 0: eval(), 1: eval(), 2: eval()",
}


@workers(2)
@pytest.mark.parametrize("kind", DIFFERENCES)
def test_a_model_in_different_modes_is_refused_by_all(kind):
    P, rank = rows(), gridwise.world().rank
    model = gridwise.distribute(nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1)), P)
    x = torch.randn(1, 2, 2, 3)
    model(x).sum().backward()
    if kind == "frozen":
        model.get_submodule("0").bias.requires_grad_(rank == 0)
    elif kind == "swapped":
        model.get_submodule(str(2 * rank)).bias.requires_grad_(False)
    elif kind == "tracking":
        model.get_submodule("1").track_running_stats = rank == 0
    else:
        model.train(rank == 0)
    with pytest.raises(PartitionError, match="not in the same mode on all workers") as raised:
        model(x)
    assert DIFFERENCES[kind] in str(raised.value).replace(" on cuda", "")
    model.train().requires_grad_()
    model.get_submodule("1").track_running_stats = True
    model(x).sum().backward()


@workers(2)
def test_a_model_that_draws_numbers_in_different_ways_is_refused_by_all() -> None:
    P, x = rows(), torch.ones(1, 1, 2, 4)
    model = gridwise.distribute(nn.Dropout(), P)
    model(x)
    with (
        pytest.raises(PartitionError, match=r"not in the same mode[\s\S]*worker 0: sequential_random: off"),
        gridwise.sequential_random() if P.rank else nullcontext(),
    ):
        model(x)
    with gridwise.sequential_random():
        model(x)
    model(x)
    assert runner_of(model)._plans.count == 3  # the second was refused


@workers(2)
def test_a_layer_in_different_modes_is_refused_by_all():
    P, rank = rows(), gridwise.world().rank
    norm, conv = gridwise.nn.DistributedBatchNorm2d(P, 2), gridwise.nn.DistributedConv2d(P, 2, 2, 1)
    for layer in (norm.train(rank == 0), conv):
        conv.bias.requires_grad_(rank == 0)
        with pytest.raises(PartitionError, match="not in the same mode on all workers"):
            layer(torch.ones(1, 2, 2, 3))


@workers(2)
@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_weights_that_one_worker_does_not_record_are_refused_by_all(off):
    P, x = rows(), torch.ones(1, 2, 2, 3)
    model = gridwise.distribute(nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU()), P)
    for layer in (
        gridwise.nn.DistributedConv2d(P, 2, 2, 3, padding=1),
        gridwise.nn.DistributedBatchNorm2d(P, 2),
        model,
    ):
        layer(x)
        with pytest.raises(PartitionError, match="not in the same mode"), off() if P.rank else nullcontext():
            layer(x)
        layer(x).sum().backward()


@workers(2)
def test_a_module_of_a_model_may_be_replaced():
    P = rows()
    model = gridwise.distribute(nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 1)), P)
    x = torch.ones(1, 1, 2, 4)
    model(x)
    model.set_submodule("1", gridwise.nn.DistributedConv2d(P, 1, 1, 1, bias=False))
    with pytest.raises(UnsupportedError, match="is a distributed layer"):
        model(x)
    model.set_submodule("1", nn.Conv2d(1, 1, 1, bias=False))
    with torch.no_grad():
        model.get_submodule("1").weight.fill_(0.0)
    assert not model(x).any()
    model.get_submodule("0").bias = None
    model(x).sum().backward()


@workers(2)
def test_training_and_evaluation_in_turns_record_one_run_each():
    P = rows()
    model = gridwise.distribute(nn.Sequential(nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1), nn.Dropout(0.5)), P)
    for _ in range(3):
        for mode in (True, False):
            model.train(mode)
            model(torch.ones(1, 1, 4, 4))
    assert runner_of(model)._plans.count == 2


@workers(3)
def test_a_worker_outside_gets_as_many_outputs_as_the_others():
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, 2 * x

    P = rows(ranks=[0, 1])
    model = gridwise.distribute(Two(), P, example=(1, 1, 4, 2))
    one, two = model(torch.ones((1, 1, 2, 2) if P.active else (0,)))
    assert one.shape == two.shape == ((1, 1, 2, 2) if P.active else (0,))


@workers(2)
@pytest.mark.parametrize("first", ["plain", "checkpointed"])
def test_a_checkpointed_model_with_an_empty_output_on_one_worker(first):
    torch.manual_seed(0)
    P, sequential = rows(), nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1)).double()
    model, x = gridwise.distribute(copy.deepcopy(sequential), P), torch.randn(1, 3, 2, 6, dtype=torch.float64)
    whole, mine = x.clone().requires_grad_(), block(x, P).requires_grad_()
    sequential(whole).square().sum().backward()
    if first == "plain":
        model(mine)
    checkpoint(model, mine, use_reentrant=False).square().sum().backward()
    torch.testing.assert_close(mine.grad, block(whole.grad, P))
    for parameter, expected in zip(model.parameters(), sequential.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)


@workers(2, transports=("mpi",))
def test_a_checkpointed_layer_with_large_messages():
    torch.manual_seed(0)
    P = rows()
    layer, x = gridwise.nn.DistributedConv2d(P, 64, 4, kernel_size=2), torch.randn(1, 64, 8, 2048, requires_grad=True)
    gradients = []
    for road in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
        (gradient,) = torch.autograd.grad(road(x).sum(), x)
        gradients.append(gradient)
    torch.testing.assert_close(*gradients)


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, size=(x.shape[2] + 1, 5))


@workers(2)
def test_layers_of_sizes_that_do_not_come_back_are_not_kept():
    P, sequential = rows(), Scaled()
    model = gridwise.distribute(copy.deepcopy(sequential), P)
    modules = len(list(model.modules()))
    sizes = [*range(4, 84, 2), *range(56, 84, 2), 4, 82, 4, 78]
    for n in sizes:
        x = torch.arange(4.0 * n).view(1, 1, n, 4)
        torch.testing.assert_close(model(block(x, P)), block(sequential(x), P))
    assert len(list(model.modules())) == modules
    assert runner_of(model)._plans.count == 41  # one for each size, and one for 4, which was forgotten
    assert len(runner_of(model)._plans._kept) == PLANS_KEPT


@workers(2)
def test_a_run_that_fails_leaves_the_kept_ones():
    P, sequential = rows(), nn.Sequential(Scaled(), nn.AvgPool2d(2))
    model = gridwise.distribute(copy.deepcopy(sequential), P)
    model(torch.ones(1, 1, 2, 4))
    handle = model.get_submodule("1").register_forward_pre_hook(lambda module, input: 1 / 0)
    for n in range(3, 3 + PLANS_KEPT):
        with pytest.raises(PartitionError, match="division by zero"):
            model(torch.ones(1, 1, n, 4))
    handle.remove()
    for n in (2, 3, 2):
        assert model(torch.ones(1, 1, n, 4)).any()


@workers(3)
def test_functions_forget_the_layers_that_were_not_called_for_long():
    world = gridwise.world()
    two, three = rows(ranks=[0, 1]), rows(3)
    if two.active:  # calls that one worker does not make
        for k in range(70):
            gridwise.nn.functional.repartition(
                torch.ones(1, 1, 40, k + 1), two, two, [None, None, [0, 1 + k % 68, 80], None]
            )
    for k in (*range(1, 68), 1, 67):
        y = gridwise.nn.functional.repartition(
            torch.ones(1, 1, 23, 2), three, three, [None, None, [0, k, 68, 69], None]
        )
        assert y.shape[2] == (k, 68 - k, 1)[world.rank]
    layers = list(two.transport.cached_layers.values())
    assert max(map(len, layers)) == gridwise.nn.functional.LAYERS_KEPT


@workers(2)
@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_that_come_and_go_have_runs_of_their_own(register):
    P = rows()
    model = gridwise.distribute(nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.ReLU()), P)
    x, pool = torch.ones(1, 1, 2, 4), nn.AvgPool2d(3, 1, 1)
    plain = model(x)
    handle = getattr(model.get_submodule("1"), register)(lambda module, input, *output: pool(*(output or input)))
    for _ in range(2):
        assert not torch.equal(model(x), plain)
    handle.remove()
    torch.testing.assert_close(model(x), plain)
    assert runner_of(model)._plans.count == 2
