"""Losses equal torch's: one number for all, gradients of input and target, every option, every grid."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

import gridwise
from gridwise.testing import check_gradients, workers

nn = gridwise.nn
SHAPE = (5, 3, 4)
WEIGHT = torch.rand(3, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
POSITIVE = torch.rand(5, 1, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

LOSSES: list[tuple[str, dict[str, Any]]] = [
    ("L1Loss", {}),
    ("MSELoss", {}),
    ("SmoothL1Loss", {"beta": 0.3}),
    ("SmoothL1Loss", {"beta": 0.0}),
    ("HuberLoss", {"delta": 0.4}),
    ("BCELoss", {}),
    ("BCELoss", {"weight": WEIGHT}),
    ("BCEWithLogitsLoss", {}),
    ("BCEWithLogitsLoss", {"weight": WEIGHT, "pos_weight": POSITIVE}),
    ("KLDivLoss", {}),
    ("KLDivLoss", {"log_target": True}),
    ("KLDivLoss", {"reduction": "batchmean"}),
    ("PoissonNLLLoss", {}),
    ("PoissonNLLLoss", {"log_input": False, "full": True, "eps": 1e-6}),
]


def grids(workers: int, dim: int) -> list[tuple[int, ...]]:
    """Every grid of so many workers with so many axes."""
    choices = [p for p in range(1, workers + 1) if workers % p == 0]
    return [shape for shape in itertools.product(choices, repeat=dim) if torch.Size(shape).numel() == workers]


def on_grid(shape: tuple[int, ...], first: int = 0) -> gridwise.CartesianPartition:
    ranks = range(first, first + torch.Size(shape).numel())
    return gridwise.world().create_partition_inclusive(ranks).create_cartesian_topology_partition(shape)


def compare(layer: Any, loss: Any, x: torch.Tensor, target: torch.Tensor, P_x: Any) -> None:
    """Value, and gradients of input and target, of one loss against torch's."""
    block = gridwise.local_slice(P_x, x.shape)
    wants = [t.clone().requires_grad_() for t in (x, target)]
    mine = [t[block].clone().requires_grad_() for t in (x, target)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice about kl_div and 'mean'
        expected = loss(*wants)
    actual = layer(*mine)
    if expected.dim():
        torch.testing.assert_close(actual, expected[block])
        expected, actual = expected.square().sum(), actual.square().sum()
    else:
        torch.testing.assert_close(actual, expected)
    expected.backward()
    actual.backward()
    for want, have in zip(wants, mine, strict=True):
        torch.testing.assert_close(have.grad, want.grad[block])


@workers(1, 2, 3, 4)
def test_losses_equal_torch(gridwise_setting: tuple[str, int]) -> None:
    x, target = torch.rand(2, *SHAPE, dtype=torch.float64).clamp(0.01, 0.99)
    thorough = gridwise_setting[0] == "mpi"
    for shape in grids(gridwise.world().size, 3)[:: 1 if thorough else 2]:
        P_x = on_grid(shape)
        for name, options in LOSSES:
            usual = ("none", "mean", "sum") if thorough else ("mean",)
            for reduction in (options["reduction"],) if "reduction" in options else usual:
                here = {
                    name: x.new_tensor(value) if torch.is_tensor(value) else value for name, value in options.items()
                }
                arguments = {**here, "reduction": reduction}
                compare(
                    getattr(nn, f"Distributed{name}")(P_x, **arguments),
                    getattr(torch.nn, name)(**arguments),
                    x,
                    target,
                    P_x,
                )


@workers(4)
def test_empty_blocks_count_as_nothing() -> None:
    P_x = on_grid((4, 1))
    x, target = torch.rand(2, 2, 3, dtype=torch.float64)
    for name in ("MSELoss", "BCELoss", "KLDivLoss"):
        compare(getattr(nn, f"Distributed{name}")(P_x), getattr(torch.nn, name)(), x, target, P_x)


@workers(1, 3)
def test_double_backward() -> None:
    P_x = on_grid((gridwise.world().size, 1))
    target = torch.randn(2, 3, dtype=torch.float64)
    loss = nn.DistributedMSELoss(P_x)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(x, target) ** 2, x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), x)
    blocks = [gridwise.gather(part.detach(), P_x) for part in (x, target, gradient, second)]
    if gridwise.world().rank == 0:
        whole, aim, first, last = blocks
        whole.requires_grad_()
        (g,) = torch.autograd.grad(torch.nn.functional.mse_loss(whole, aim) ** 2, whole, create_graph=True)
        (h,) = torch.autograd.grad(g.square().sum(), whole)
        torch.testing.assert_close(first, g.detach())
        torch.testing.assert_close(last, h)


@workers(3)
def test_a_worker_outside_gets_a_zero_and_calls_backward() -> None:
    world = gridwise.world()
    P_all, P_x = on_grid((3, 1)), on_grid((2, 1))
    x = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    y = nn.Repartition(P_all, P_x)(x)
    loss = nn.DistributedMSELoss(P_x)(y, torch.zeros_like(y))
    loss.backward()
    torch.testing.assert_close(loss.detach(), torch.tensor(1.0 if world.rank < 2 else 0.0, dtype=torch.float64))
    torch.testing.assert_close(x.grad, torch.full((2, 2), 2 / 12, dtype=torch.float64))
    alone = nn.DistributedMSELoss(P_x)(torch.ones(1, 2, requires_grad=P_x.active), torch.zeros(1, 2))
    alone.backward()


@workers(2)
def test_half_precision_is_summed_in_float32() -> None:
    P_x = on_grid((2, 1))
    x = torch.ones(3000, 2, dtype=torch.bfloat16, requires_grad=True)
    loss = nn.DistributedMSELoss(P_x)(x, torch.zeros_like(x))
    assert loss.dtype == torch.bfloat16
    assert loss.item() == 1.0
    assert nn.DistributedMSELoss(P_x, reduction="sum")(x, torch.zeros_like(x)).item() == 12032  # 12,000 in bfloat16


@workers(2)
def test_bad_targets_raise_everywhere() -> None:
    rank = gridwise.world().rank
    P_x = on_grid((2, 1))
    with pytest.raises(gridwise.errors.PartitionError, match=r"worker 1: needs a target of the input's shape"):
        nn.DistributedMSELoss(P_x)(torch.ones(2, 2), torch.ones(2, 2 + rank))
    with pytest.raises(gridwise.errors.PartitionError, match=r"worker 0: needs inputs between 0 and 1"):
        nn.DistributedBCELoss(P_x)(torch.ones(2, 2) * (2 - rank), torch.ones(2, 2))
    with pytest.raises(gridwise.errors.PartitionError, match="does not broadcast"):
        nn.DistributedBCELoss(P_x, weight=torch.ones(3))(torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(gridwise.errors.PartitionError, match="`reduction` "):
        nn.DistributedMSELoss(P_x, reduction="batchmean")
    loss = nn.DistributedMSELoss(P_x)(torch.ones(2, 2), torch.zeros(2, 2))  # and the workers are still in step
    assert loss.item() == 1.0


@workers(2)
def test_finite_differences() -> None:
    P_x = on_grid((2, 1))
    target = torch.rand(2, 3, dtype=torch.float64)
    loss = nn.DistributedMSELoss(P_x, reduction="none")
    check_gradients(lambda x: loss(x, target) ** 2, torch.rand(2, 3, dtype=torch.float64))


def test_a_weight_that_is_no_tensor_is_refused() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    for loss in (nn.DistributedBCELoss, nn.DistributedCrossEntropyLoss):
        with pytest.raises(TypeError, match="buffer 'weight'"):
            loss(P_x, weight=[1.0, 2.0])  # type: ignore[arg-type]
