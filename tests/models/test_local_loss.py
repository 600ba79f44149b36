"""A torch loss on the blocks of a distributed model's output is a sum of local means: a warning in the first backward."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.errors import LocalLoss
from gridwise.models.local_loss import watch_for_local_loss
from gridwise.testing import workers


def warned(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in seen if each.category is LocalLoss]


LOCAL: dict[str, Callable[[Tensor], Tensor]] = {
    "MeanBackward0": lambda y: y.square().mean(),
    "MseLossBackward0": lambda y: 0.5 * F.mse_loss(y, torch.zeros_like(y)) + y.sum(),
    "NllLoss2DBackward0": lambda y: F.cross_entropy(y, torch.zeros(y.shape[0], *y.shape[2:], dtype=torch.long)),
    "MeanBackward1": lambda y: y.abs().mean((0, 1, 2, 3)),
}


@workers(2, transports=("mpi",))
def test_a_mean_of_each_block_is_noticed_once() -> None:
    P = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 1))
    count, x = int(P.rank == 0), torch.ones(2, 3, 4, 4)
    for name, loss in LOCAL.items():
        model = gridwise.distribute(nn.Conv2d(3, 2, 1), P)
        found = warned(lambda loss=loss, model=model: loss(model(x)).backward())
        assert [f"({name})" in text and "DistributedMSELoss(model.P_y)" in text for text in found] == [True] * count, (
            found
        )
        assert not warned(lambda loss=loss, model=model: loss(model(x)).backward()), "once"
    y = model.eval()(x.repeat(2, 1, 1, 1))
    assert len(warned(lambda: torch.autograd.grad(y.mean(), y))) == 0, "not through the model"
    y = model(x.repeat(2, 1, 1, 1))
    assert len(warned(lambda: torch.autograd.grad(y.mean(), [*model.parameters()]))) == count
    with warnings.catch_warnings():
        warnings.simplefilter("error", LocalLoss)
        y = model(x.repeat(3, 1, 1, 1))
        with pytest.raises(LocalLoss):
            y.mean().backward()


GLOBAL: dict[str, Callable[[Any, Tensor], Any]] = {
    "a sum": lambda P, y: y.square().sum().backward(),
    "a distributed loss": lambda P, y: gridwise.nn.DistributedMSELoss(P)(y, torch.zeros_like(y)).backward(),
    "a distributed function": lambda P, y: gridwise.distribute(lambda y: y.square().mean(), P)(y).backward(),
    "a sum over the workers": lambda P, y: (
        gridwise.nn.AllSumReduce(P, (2,))(y.mean().view(1, 1, 1, 1)).sum().backward()
    ),
    "another model": lambda P, y: gridwise.distribute(nn.Conv2d(2, 2, 1), P)(y).sum().backward(),
    "a gradient that is given": lambda P, y: y.backward(torch.ones_like(y)),
    "a mean of something else": lambda P, y: (y.sum() + torch.ones(3, requires_grad=True).mean()).backward(),
}


@workers(2, transports=("mpi",))
def test_what_is_global_is_not_warned_of() -> None:
    P = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 1))
    for name, differentiate in GLOBAL.items():
        model = gridwise.distribute(nn.Conv2d(3, 2, 1), P)
        y = model(torch.ones(2, 3, 4, 4))
        assert not warned(lambda y=y, differentiate=differentiate: differentiate(P, y)), name


def test_one_worker_has_the_whole() -> None:
    P = gridwise.world().create_cartesian_topology_partition((1, 1, 1, 1))
    gridwise.distribute(nn.Conv2d(3, 2, 1), P)(torch.ones(2, 3, 4, 4)).mean().backward()


def test_the_graph_of_the_first_call_is_freed() -> None:
    P = gridwise.world().create_cartesian_topology_partition((1, 1, 1, 1))
    model = gridwise.distribute(nn.Conv2d(3, 2, 1), P)
    gc.disable()
    try:
        y = model(torch.ones(2, 3, 4, 4))
        watch_for_local_loss(y, P.transport, P.team, "it", lambda: False)
        left = weakref.ref(y)
        with pytest.warns(LocalLoss):
            y.mean().backward()
        node = weakref.ref(y.grad_fn)
        del y
        assert left() is None
        assert node() is None
    finally:
        gc.enable()
