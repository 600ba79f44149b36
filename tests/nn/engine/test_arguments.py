"""Mistakes that users of torch and of DistDL make: one error on all workers that says what to write."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

import gridwise
from gridwise import nn
from gridwise.errors import PartitionError
from gridwise.testing import workers

LAYERS = [name for name in dir(nn) if name.startswith("Distributed") and not name.endswith(("Model", "Base"))]
PRIMITIVES = ["AllGather", "AllSumReduce", "Broadcast", "HaloExchange", "ReduceScatter", "Repartition", "SumReduce"]


@pytest.mark.parametrize("name", LAYERS + PRIMITIVES)
def test_a_forgotten_partition_is_named(name):
    kind = getattr(nn, name)
    count = len([p for p in inspect.signature(kind.__init__).parameters.values() if p.default is p.empty]) - 2
    for args in ((3,) * max(count, 1), (3,) * (count + 1)):
        with pytest.raises(PartitionError, match=rf"{name}: `P_x` \(=3\) must be a partition: it comes before"):
            kind(*args)
    with pytest.raises(PartitionError, match=r"`P_x`, which is missing, must be a partition"):
        kind(bias=False)


def grid(*shape):
    return gridwise.world().create_cartesian_topology_partition(shape)


@workers(2)
def test_arguments_in_the_order_of_distdl():
    P_x = grid(1, 1, 2, 1)
    with pytest.raises(
        PartitionError, match=r"(?s)`dilation` \(='zeros'\) must be a whole number.*padding_mode='zeros'"
    ):
        nn.DistributedConv2d(P_x, 3, 4, 3, 1, 1, "zeros")
    with pytest.raises(PartitionError, match=r"(?s)`output_padding` \(='zeros'\).*padding_mode='zeros' by its name"):
        nn.DistributedConvTranspose2d(P_x, 3, 4, 3, 1, 1, "zeros")
    with pytest.raises(PartitionError, match=r"`padding` \(=\(1, 1, 1\)\) must be a whole number, or 2 of them"):
        nn.DistributedConv2d(P_x, 3, 4, 3, padding=(1, 1, 1))
    with pytest.raises(PartitionError, match=r"(?s)`cuts` \(=<object.*leave out a buffer manager"):
        nn.Repartition(P_x, P_x, True, object())
    assert nn.DistributedConv2d(P_x, 3, 4, (3, 3), stride=[1, 1], padding="same")(torch.ones(1, 3, 4, 4)).shape[1] == 4


@workers(2)
@pytest.mark.parametrize("name", ["Conv2d", "ConvTranspose2d"])
def test_channels_of_a_block_are_not_those_of_the_tensor(name):
    layer = getattr(nn, f"Distributed{name}")(grid(1, 2, 1, 1), 3, 4, 3)
    with pytest.raises(
        PartitionError, match=r"(?s)needs `in_channels` \(=3\) channels in dim 1 .* got 6.*over all blocks"
    ):
        layer(torch.ones(1, 3, 8, 8))


@workers(2, 3)
def test_a_model_that_was_seeded_differently_is_synchronised():
    rank = gridwise.world().rank
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.BatchNorm2d(2), torch.nn.ReLU())
    model.to(memory_format=torch.channels_last)
    with pytest.warns(UserWarning, match="the weights of Sequential differ on workers"):
        on_grid = gridwise.distribute(model, grid(1, 1, gridwise.world().size, 1))
    gridwise.check_replicas(on_grid)
    torch.manual_seed(0)
    torch.testing.assert_close(
        on_grid.get_submodule("0").weight.detach(), torch.nn.Conv2d(1, 2, 3, padding=1).weight.detach()
    )
    assert on_grid.get_submodule("0").weight is model[0].weight
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(0)
        gridwise.distribute(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3)), grid(1, 1, gridwise.world().size, 1))
    with pytest.raises(PartitionError, match="different replicas"):
        gridwise.distribute(torch.nn.Sequential(torch.nn.PReLU(1 + rank)), grid(gridwise.world().size, 1, 1))


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("name", [name for name in LAYERS if "ChannelConv" not in name and "GeneralConv" not in name])
def test_what_is_no_tensor_on_one_worker_is_refused_on_all(name: str) -> None:
    world, kind = gridwise.world(), getattr(nn, name)
    axes = int(name[-2]) + 2 if name[-1] == "d" else 4
    required = [p for p in inspect.signature(kind).parameters.values() if p.default is p.empty][1:]
    extents = {"normalized_shape": (8,), "padding": 1}
    P_x = world.create_cartesian_topology_partition([2] + [1] * (axes - 1))
    layer = kind(P_x, *(extents.get(p.name, 4) for p in required if p.kind is p.POSITIONAL_OR_KEYWORD))
    x = torch.rand([2, 4] + [8] * (axes - 2))
    pair = "Loss" in name or "Unpool" in name
    for wrong in (None, [1.0]):
        args = (x if world.rank == 0 else wrong, *([x.long() if "Unpool" in name else x] if pair else []))
        with pytest.raises(PartitionError, match=r"worker 1: needs (one|two) tensor"):
            layer(*args)
