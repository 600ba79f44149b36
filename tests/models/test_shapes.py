"""Shapes and dtypes that change from call to call: a model is recorded as it is now, and a batch of one is broadcast."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise.testing import workers

from .of_functions import Of, OfTwo

PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "of a range": lambda x, y: (x @ y) + torch.arange(x.shape[2]),
    "of a range on a device": lambda x, y: (x @ y) + torch.arange(x.shape[2], device="cpu"),
    "moved to a device": lambda x, y: (x.to("cpu") @ y.to(device="cpu")).to("cpu", torch.float64),
    "in a type by its name": lambda x, y: (x @ y) * x.type("torch.DoubleTensor"),
}


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_batch_of_one_against_a_cut_batch(name: str) -> None:
    P = gridwise.world().create_cartesian_topology_partition([2, 1, 1])
    model = gridwise.distribute(OfTwo(PRODUCTS[name]), P)
    x, y = torch.rand(2, 6, 4, dtype=torch.float64), torch.rand(1, 4, 4, dtype=torch.float64)
    expected = PRODUCTS[name](x, y)
    got = model(*(t[gridwise.local_slice(P, t.shape)] for t in (x, y)))
    torch.testing.assert_close(got, expected[gridwise.local_slice(model.P_y, expected.shape)])


@workers(2, transports=("mpi",))
def test_a_batch_of_one_against_a_cut_batch_under_autocast() -> None:
    P = gridwise.world().create_cartesian_topology_partition([2, 1, 1])
    model = gridwise.distribute(OfTwo(lambda x, y: x.half() @ y), P)
    x, y = torch.ones(1, 6, 4), torch.ones(1 - P.index[0], 4, 4)
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        assert model(x, y).dtype is torch.bfloat16
        assert model(x, torch.ones(1, 4, 4)).dtype is torch.bfloat16


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_takes_another_dtype_after_it_is_distributed(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    modules = {"conv": nn.Conv2d(3, 4, 3, padding=1), "norm": nn.BatchNorm2d(4), "last": nn.Linear(5, 2)}
    sequential = Of(lambda m, x: m.last(m.norm(m.conv(x))) * torch.tensor([2.0, 3.0]), **modules)
    model = gridwise.distribute(copy.deepcopy(sequential), P)
    x = torch.randn(2, 3, 6, 5)
    for kind in (torch.float32, dtype, torch.float32):
        expected = sequential.to(kind)(x.to(kind))
        y = model.to(kind)(x.to(kind)[gridwise.local_slice(P, x.shape)])
        assert y.dtype is expected.dtype
        mine = expected[gridwise.local_slice(model.P_y, expected.shape)]
        torch.testing.assert_close(y, mine, **({"rtol": 0.05, "atol": 0.05} if kind is torch.bfloat16 else {}))


@workers(2, transports=("mpi",))
def test_buffers_take_another_dtype_while_the_input_keeps_its_own() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 2, 1])
    sequential = Of(lambda m, x: (x * m.scale).flatten(1).softmax(1))
    sequential.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))
    model, x = (
        gridwise.distribute(copy.deepcopy(sequential), P),
        torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(0)),
    )
    for kind in (torch.float32, torch.float64):
        expected = sequential.to(kind)(x)
        y = model.to(kind)(x[gridwise.local_slice(P, x.shape)])
        torch.testing.assert_close(y, expected[gridwise.local_slice(model.P_y, expected.shape)])


@workers(2, transports=("mpi",))
def test_the_mean_over_all_batches_is_tracked() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2])
    sequential = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2, momentum=None))
    model = gridwise.distribute(copy.deepcopy(sequential), P)
    for _ in range(3):
        x = torch.randn(2, 1, 6)
        y, expected = model(x[gridwise.local_slice(P, x.shape)]), sequential(x)
        torch.testing.assert_close(y, expected[gridwise.local_slice(P, expected.shape)])
    for own, buffer in zip(model.buffers(), sequential.buffers(), strict=True):
        torch.testing.assert_close(own.as_subclass(Tensor), buffer)
