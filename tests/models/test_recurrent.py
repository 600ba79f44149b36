"""Recurrent layers in converted models: equal to the sequential ones over blocks of the batch, or named."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import gridwise
from gridwise.testing import check_equal_to_sequential, workers

from .of_functions import Of, check_or_refused, without_cudnn

GRIDS: dict[int, list[tuple[int, ...]]] = {
    1: [(1, 1, 1)],
    2: [(2, 1, 1), (1, 2, 1), (1, 1, 2)],
    3: [(3, 1, 1), (1, 3, 1)],
    4: [(4, 1, 1), (2, 2, 1), (2, 1, 2)],
}
RECURRENT: dict[str, Any] = {
    "lstm": lambda: Of(
        lambda m, x: m.head(m.r(x)[0]), r=nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True), head=nn.Linear(10, 3)
    ),
    "last state": lambda: Of(lambda m, x: m.r(x)[1][0][-1] * m.r(x)[1][1][0], r=nn.LSTM(8, 5, 2, batch_first=True)),
    "gru": lambda: Of(lambda m, x: m.r(x.transpose(0, 1))[0].transpose(0, 1), r=nn.GRU(8, 5, bias=False)),
    "rnn with an initial state": lambda: Of(
        lambda m, x: m.r(x, m.start.weight.expand(x.size(0), 1, 5).transpose(0, 1))[0],
        r=nn.RNN(8, 5, nonlinearity="relu", batch_first=True),
        start=nn.Embedding(1, 5),
    ),
    "one after the other": lambda: Of(
        lambda m, x: m.b(m.a(x)[0], (m.a(x)[1], m.a(x)[1].sin()))[0],
        a=nn.GRU(8, 5, batch_first=True),
        b=nn.LSTM(5, 5, batch_first=True),
    ),
    "projected": lambda: Of(lambda m, x: m.r(x)[0], r=nn.LSTM(8, 5, proj_size=3, batch_first=True)),
}  # fmt: skip


@workers(1, 2, 3, transports=("mpi",))
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name: str, gridwise_setting: tuple[str, int]) -> None:
    for grid in GRIDS[gridwise_setting[1]]:
        P = gridwise.world().create_cartesian_topology_partition(grid)
        torch.manual_seed(0)
        sequential = RECURRENT[name]().double()
        for shape in ((5, 6, 8), (1, 4, 8)):
            x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
            model = gridwise.distribute(copy.deepcopy(sequential), P, example=x)
            for _ in range(2):
                model.zero_grad()
                sequential.zero_grad()
                with without_cudnn():
                    check_equal_to_sequential(model, sequential, x, P, model.P_y)


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_second_order_where_a_worker_has_no_samples(name: str) -> None:
    P = gridwise.world().create_cartesian_topology_partition([2, 1, 1])
    torch.manual_seed(0)
    sequential = Of(lambda m, x: m.r(x)[0], r=getattr(nn, name)(3, 2, batch_first=True)).double()
    model, x = gridwise.distribute(copy.deepcopy(sequential), P), torch.randn(1, 4, 3, dtype=torch.float64)
    for _ in range(2):
        for each, own in ((sequential, x.clone()), (model, x[gridwise.local_slice(P, x.shape)].clone())):
            each.zero_grad()
            with without_cudnn():
                (gradient,) = torch.autograd.grad(each(own.requires_grad_()).sum(), own, create_graph=True)
            gradient.square().sum().backward()
        for own, expected in zip(model.parameters(), sequential.parameters(), strict=True):
            torch.testing.assert_close(own.grad, expected.grad)


ODD: dict[str, Any] = {
    "dropout between layers": lambda: Of(lambda m, x: m.r(x)[0], r=nn.GRU(8, 4, 2, dropout=0.1)).eval(),
    "a recurrent layer without a batch": lambda: Of(lambda m, x: m.r(x[0])[0], r=nn.GRU(8, 4)),
}  # fmt: skip


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("name", ODD)
def test_equal_or_refused(name: str) -> None:
    check_or_refused(ODD[name], (2, 1, 1), (5, 6, 8))
