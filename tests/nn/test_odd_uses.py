"""Layers in uses that are rare and right in torch: equal to it, or refused by all workers."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

import gridwise
import gridwise.nn.engine.carrier
from gridwise import nn
from gridwise.errors import PartitionError, UnsupportedError
from gridwise.testing import workers


def row(*shape):
    return gridwise.world().create_cartesian_topology_partition(shape)


def block(P, x):
    return x[gridwise.local_slice(P, x.shape)].clone()


@workers(2)
def test_targets_are_looked_at_for_the_classes_of_this_call():
    P = row(1, 2)
    loss = nn.DistributedCrossEntropyLoss(P)
    good, late = torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 15])
    few, many = torch.randn(4, 10), torch.randn(4, 20)
    for x, target in ((many, good), (few, good), (many, late), (few, good), (many, late)):
        torch.testing.assert_close(loss(block(P, x), target), torch.nn.functional.cross_entropy(x, target))
    if few.is_cpu:  # on a device nobody looks: torch's kernel ends the process, as it does without a grid
        with pytest.raises(PartitionError, match="from 0 to 9"):
            loss(block(P, few), late)


@workers(2)
def test_hooks_of_the_user_come_before_the_plan():
    P = row(1, 1, 2)
    torch.manual_seed(0)
    layer = nn.DistributedConv1d(P, 1, 1, 3, padding=1).requires_grad_(False)
    sequential = torch.nn.Conv1d(1, 1, 3, padding=1)
    sequential.load_state_dict(layer.state_dict())
    scale = torch.nn.Parameter(torch.full((1,), 2.0))
    x, gradients = torch.randn(1, 1, 8), []
    for module, given in ((layer, block(P, x)), (sequential, x)):
        module.register_forward_pre_hook(lambda m, args: (args[0] * scale,))
        module(given).square().sum().backward()
        gradients.append(scale.grad)
        scale.grad = None
    total = P.transport.all_sum(gradients[0], P.team)
    torch.testing.assert_close(total, gradients[1])
    pool = nn.DistributedMaxPool1d(P, 2)
    pool.register_forward_pre_hook(lambda m, args: (args[0].double(),), prepend=True)
    assert pool(block(P, x)).dtype is torch.float64


@workers(2)
def test_an_error_between_sending_and_waiting_leaves_the_messages_their_memory():
    P = row(1, 2)
    layer, put = nn.HaloExchange(P, [(0, 0), (1, 1)]), gridwise.nn.engine.carrier.put

    def fails(*args):
        raise MemoryError

    x = torch.full((1, 200), float(P.rank))
    for _ in range(100):
        gridwise.nn.engine.carrier.put = fails
        try:
            with pytest.raises(MemoryError):
                layer(x)
        finally:
            gridwise.nn.engine.carrier.put = put
        assert layer(x)[0, -1 if P.rank == 0 else 0] == 1 - P.rank


@workers(2)
@pytest.mark.parametrize("name", ["batch", "group", "instance"])
def test_second_order_of_norms_where_only_one_worker_needs_the_input(name):
    P = row(2, 1, 1) if name == "batch" else row(1, 1, 2)
    layer = {
        "batch": lambda: nn.DistributedBatchNorm1d(P, 4),
        "group": lambda: nn.DistributedGroupNorm(P, 2, 4),
        "instance": lambda: nn.DistributedInstanceNorm1d(P, 4, affine=True),
    }[name]().double()
    x = torch.randn(1, 4, 3, dtype=torch.float64, requires_grad=P.rank == 0)
    with torch.enable_grad():
        gradients = torch.autograd.grad(layer(x).pow(3).sum(), list(layer.parameters()), create_graph=True)
        sum(g.square().sum() for g in gradients).backward()
    assert (x.grad is not None) == (P.rank == 0)
    assert all(p.grad is not None for p in layer.parameters())


@workers(2)
@pytest.mark.parametrize("last", ["MaxPool1d", "AvgPool1d", "ReflectionPad1d"])
def test_checkpointed_layers_of_which_the_last_makes_nothing_on_one_worker(last):
    P = row(2, 1, 1)
    torch.manual_seed(0)
    conv = nn.DistributedConv1d(P, 1, 1, 3, padding=1)
    layers = torch.nn.Sequential(conv, getattr(nn, f"Distributed{last}")(P, 2))
    x, gradients = torch.randn(1 - P.rank, 1, 8), []
    for again in (False, True):
        given = x.clone().requires_grad_()
        y = checkpoint(layers, given, use_reentrant=False) if again else layers(given)
        gradients.append(torch.autograd.grad(y.square().sum(), [given, conv.weight]))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other)


@workers(2)
def test_an_inference_tensor_is_refused_by_all_where_weights_need_gradients():
    P = row(1, 1, 2)
    layer = nn.DistributedConv1d(P, 2, 3, 2, stride=2)
    with torch.inference_mode():
        x = torch.randn(1, 2, 4 + P.rank)
        layer(x)
    with pytest.raises(PartitionError, match="inference tensor"):
        layer(x)
    assert not layer.requires_grad_(False)(x).requires_grad
    torch.manual_seed(0)
    model = gridwise.distribute(torch.nn.Sequential(torch.nn.Conv1d(2, 3, 2, stride=2), torch.nn.ReLU()), P)
    with torch.inference_mode():
        x = torch.randn(1, 2, 4)
    for _ in range(2):
        model(torch.randn(1, 2, 4))  # planned, then trusted
        with pytest.raises(PartitionError, match="inference tensor"):
            model(x)


@workers(2)
def test_statistics_are_not_tracked_once_that_is_switched_off():
    P = row(1, 1, 2)
    for name in ("BatchNorm1d", "InstanceNorm1d"):
        layer = getattr(nn, f"Distributed{name}")(P, 3, track_running_stats=True).double()
        sequential = getattr(torch.nn, name)(3, track_running_stats=True).double()
        x = torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        for tracks, trains in ((True, True), (False, True), (False, False), (True, False), (True, True)):
            for module in (layer, sequential):
                module.track_running_stats = tracks
                module.train(trains)
            expected = sequential(x)
            torch.testing.assert_close(layer(block(P, x)), block(P, expected))
            for key, value in sequential.state_dict().items():
                torch.testing.assert_close(layer.state_dict()[key].as_subclass(torch.Tensor), value)


@workers(2)
def test_what_computes_parameters_from_blocks_is_refused_and_from_whole_ones_is_not():
    P = row(1, 2)
    for change in (parametrizations.spectral_norm, lambda m: prune.l1_unstructured(m, "weight", 0.5)):
        torch.manual_seed(0)
        layer = nn.DistributedLinear(P, 6, 6)
        change(layer)
        with pytest.raises(UnsupportedError, match="is cut over the workers"):
            layer(torch.randn(4, 3))
    P = row(1, 1, 2)
    found = []
    for module in (nn.DistributedConv1d(P, 2, 3, 3, padding=1), torch.nn.Conv1d(2, 3, 3, padding=1)):
        torch.manual_seed(0)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter)
        parametrizations.spectral_norm(module)
        x = torch.ones(1, 2, 8).cumsum(2)
        y = module(block(P, x) if not found else x)
        y.square().sum().backward()
        found.append((y.detach(), module.parametrizations.weight.original.grad))
    torch.testing.assert_close(found[0][0], block(P, found[1][0]))
    torch.testing.assert_close(found[0][1], found[1][1])


@workers(2)
def test_upsampling_without_a_fetch_where_one_worker_needs_a_gradient():
    P = row(2, 1, 1)
    x = torch.randn(1, 2, 4, requires_grad=P.rank == 0)
    nn.DistributedUpsample(P, scale_factor=2)(x).sum().backward()
    assert (x.grad is not None) == (P.rank == 0)


@workers(2)
def test_primitives_take_parameters_and_buffers():
    P = row(2, 1)
    weight = nn.DistributedLinear(row(1, 2), 4, 4).weight
    assert nn.AllGather(P, (0,))(weight).shape == (2 * weight.shape[0], weight.shape[1])
    with pytest.raises(PartitionError, match="dense"):
        nn.AllGather(P, (0,))(torch.eye(3).to_sparse())


@workers(2)
def test_transforms_of_parameters_are_refused_by_all():
    layer, x = nn.DistributedConv1d(row(1, 1, 2), 1, 1, 3, padding=1), torch.ones(1, 1, 4)
    for weights in (dict(layer.named_parameters()), {}):
        with pytest.raises(UnsupportedError, match=r"torch\.func"):
            torch.func.grad(lambda w, w_0: (torch.func.functional_call(layer, w, (x,)) * w_0).sum(), (0, 1))(weights, x)
    with torch.autograd.forward_ad.dual_level():
        duals = {name: torch.autograd.forward_ad.make_dual(p, p.detach()) for name, p in layer.named_parameters()}
        with pytest.raises(UnsupportedError, match="forward-mode"):
            torch.func.functional_call(layer, duals, (x,))


@workers(2)
def test_numbers_that_cannot_be_added_are_refused_by_all_before_anything_is_sent():
    P, x = row(2, 1), torch.ones(1, 2).to(torch.uint16)
    for layer in (nn.ReduceScatter(P, (0,)), nn.AllSumReduce(P, (0,)), nn.Broadcast(P, P), nn.SumReduce(P, P)):
        with pytest.raises(PartitionError, match="cannot sum"):
            layer(x)


@pytest.mark.parametrize("root", [0.5, -1, 1, None, "0"])
def test_a_root_is_a_worker_of_the_world(root):
    P_x = gridwise.world().create_cartesian_topology_partition([1])
    with pytest.raises(PartitionError, match=r"`root` \(=.*\) is no worker of the world"):
        gridwise.gather(torch.ones(2), P_x, root)
