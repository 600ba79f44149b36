"""The rehearsal before a call of a new kind: nothing gets past it, and it knows the model as it is now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from .of_functions import Of, OfTwo
from torch import Tensor, nn

import gridwise
from gridwise.errors import PartitionError
from gridwise.testing import workers


def strange(x: Tensor, y: Tensor) -> Tensor:
    """Of numbers that no rehearsal has."""
    return (x @ y) * x.type("torch.DoubleTensor")


PRODUCTS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "of a range": (lambda x, y: (x @ y) + torch.arange(x.shape[2]), "broadcast along a cut dim"),
    "of a range on a device": (lambda x, y: (x @ y) + torch.arange(x.shape[2], device="cpu"), "along a cut dim"),
    "moved to a device": (lambda x, y: (x.to("cpu") @ y.to(device="cpu")).to("cpu", torch.float64), "along a cut dim"),
    "not to be rehearsed": (strange, "without numbers"),
}


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_batch_of_one_against_a_cut_batch_is_refused_whatever_else_the_code_does(name: str) -> None:
    P = gridwise.world().create_cartesian_topology_partition([2, 1, 1])
    function, words = PRODUCTS[name]
    model = gridwise.distribute(OfTwo(function), P)
    x, y = torch.ones(1, 6, 4, dtype=torch.float64), torch.ones(1 - P.index[0], 4, 4, dtype=torch.float64)
    with pytest.raises(PartitionError, match=words):
        model(x, y)


@workers(2, transports=("mpi",))
def test_a_batch_of_one_against_a_cut_batch_is_refused_under_autocast() -> None:
    P = gridwise.world().create_cartesian_topology_partition([2, 1, 1])
    model = gridwise.distribute(OfTwo(lambda x, y: x.half() @ y), P)
    x, y = torch.ones(1, 6, 4), torch.ones(1 - P.index[0], 4, 4)
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        with pytest.raises(PartitionError, match="broadcast along a cut dim"):
            model(x, y)
        assert model(x, torch.ones(1, 4, 4)).dtype is torch.bfloat16


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_takes_another_dtype_after_it_is_distributed(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    modules = {"conv": nn.Conv2d(3, 4, 3, padding=1), "norm": nn.BatchNorm2d(4), "last": nn.Linear(5, 2)}
    sequential = Of(lambda m, x: m.last(m.norm(m.conv(x))) * torch.tensor([2.0, 3.0]), **modules)
    model = gridwise.distribute(sequential, P)
    x = torch.randn(2, 3, 6, 5)
    for kind in (torch.float32, dtype, torch.float32):
        expected = sequential.to(kind)(x.to(kind))
        y = model.to(kind)(x.to(kind)[gridwise.local_slice(P, x.shape)])
        assert y.dtype is kind
        mine = expected[gridwise.local_slice(model.P_y, expected.shape)].to(kind)
        torch.testing.assert_close(y, mine, **({"rtol": 0.05, "atol": 0.05} if kind is torch.bfloat16 else {}))


@workers(2, transports=("mpi",))
def test_buffers_take_another_dtype_while_the_input_keeps_its_own() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 2, 1])
    sequential = Of(lambda m, x: (x * m.scale).flatten(1).softmax(1))
    sequential.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))
    model, x = gridwise.distribute(sequential, P), torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(0))
    for kind in (torch.float32, torch.float64):
        expected = sequential.to(kind)(x)
        y = model.to(kind)(x[gridwise.local_slice(P, x.shape)])
        torch.testing.assert_close(y, expected[gridwise.local_slice(model.P_y, expected.shape)])


@workers(2, transports=("mpi",))
def test_the_mean_over_all_batches_is_tracked() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2])
    sequential = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2, momentum=None))
    model = gridwise.distribute(sequential, P)
    for _ in range(3):
        x = torch.randn(2, 1, 6)
        y, expected = model(x[gridwise.local_slice(P, x.shape)]), sequential(x)
        torch.testing.assert_close(y, expected[gridwise.local_slice(P, expected.shape)])
    for own, buffer in zip(model.buffers(), sequential.buffers(), strict=True):
        torch.testing.assert_close(own.as_subclass(Tensor), buffer)
