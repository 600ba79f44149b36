"""Losses over classes equal torch's, also where the classes lie on several workers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import gridwise
from gridwise.testing import workers

nn = gridwise.nn
CLASSES = 5


def grids(workers: int, dim: int) -> list[tuple[int, ...]]:
    choices = [p for p in range(1, workers + 1) if workers % p == 0]
    return [shape for shape in itertools.product(choices, repeat=dim) if torch.Size(shape).numel() == workers]


def compare(layer: Any, loss: Any, x: torch.Tensor, target: torch.Tensor, P_x: Any) -> None:
    block = gridwise.local_slice(P_x, x.shape)
    dim = min(1, x.dim() - 1)
    samples = block[:dim] + block[dim + 1 :]
    first = P_x.index[dim] == 0
    whole = x.clone().requires_grad_()
    mine = x[block].clone().requires_grad_()
    expected = loss(whole, target)
    actual = layer(mine, target[block if target.is_floating_point() else samples])
    if layer.reduction == "none" and P_x.shape[dim] > 1 and not first:
        assert actual.numel() == 0
        actual.sum().backward()
        expected.square().sum().backward()
    elif layer.reduction == "none":
        torch.testing.assert_close(actual, expected[samples])
        actual.square().sum().backward()
        expected.square().sum().backward()
    else:
        torch.testing.assert_close(actual, expected, equal_nan=True)
        actual.backward()
        expected.backward()
    torch.testing.assert_close(mine.grad, whole.grad[block], equal_nan=True)


@workers(1, 2, 3, 4)
def test_class_indices(gridwise_setting: tuple[str, int]) -> None:
    for space in ((), (3,), (3, 2)) if gridwise_setting[0] == "mpi" else ((3,),):
        x = torch.randn(4, CLASSES, *space, dtype=torch.float64) * 5
        target = torch.randint(CLASSES, (4, *space))
        target.view(-1)[1] = -100
        weight = torch.rand(CLASSES, dtype=torch.float64)
        for shape in grids(gridwise.world().size, x.dim()):
            P_x = gridwise.world().create_cartesian_topology_partition(shape)
            reductions = ("none", "mean", "sum") if len(space) < 2 and gridwise_setting[0] == "mpi" else ("mean",)
            for reduction, smooth, w in itertools.product(reductions, (0.0, 0.3), (None, weight)):
                options: dict[str, Any] = {"reduction": reduction, "weight": w}
                if not smooth:
                    logs = x.log_softmax(1)
                    compare(nn.DistributedNLLLoss(P_x, **options), torch.nn.NLLLoss(**options), logs, target, P_x)
                options["label_smoothing"] = smooth
                compare(
                    nn.DistributedCrossEntropyLoss(P_x, **options), torch.nn.CrossEntropyLoss(**options), x, target, P_x
                )


@workers(1, 2, 4, transports=("mpi",))
def test_class_probabilities() -> None:
    x = torch.randn(4, CLASSES, 3, dtype=torch.float64)
    target = torch.rand(4, CLASSES, 3, dtype=torch.float64).softmax(1)
    weight = torch.rand(CLASSES, dtype=torch.float64)
    for shape in grids(gridwise.world().size, 3):
        P_x = gridwise.world().create_cartesian_topology_partition(shape)
        for reduction, smooth, w in itertools.product(("none", "mean", "sum"), (0.0, 0.3), (None, weight)):
            options: dict[str, Any] = {"reduction": reduction, "weight": w, "label_smoothing": smooth}
            compare(
                nn.DistributedCrossEntropyLoss(P_x, **options), torch.nn.CrossEntropyLoss(**options), x, target, P_x
            )


@workers(1, 3)
def test_without_a_batch() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([gridwise.world().size])
    x = torch.randn(7, dtype=torch.float64)
    compare(nn.DistributedCrossEntropyLoss(P_x), torch.nn.CrossEntropyLoss(), x, torch.tensor(5), P_x)


@workers(4)
def test_empty_blocks_and_another_ignored_class() -> None:
    for shape in ((1, 4), (4, 1), (2, 2)):
        P_x = gridwise.world().create_cartesian_topology_partition(shape)
        x = torch.randn(3, 3, dtype=torch.float64)
        target = torch.tensor([0, 2, 1])
        options = {"ignore_index": 2}
        compare(nn.DistributedCrossEntropyLoss(P_x, **options), torch.nn.CrossEntropyLoss(**options), x, target, P_x)


@workers(1, 2)
def test_no_class_of_uint8_targets_is_taken_for_the_ignored_one() -> None:
    """In uint8, 156 is the default `ignore_index`, -100."""
    size, x = gridwise.world().size, torch.randn(2, 200, dtype=torch.float64)
    target = torch.tensor([156, 3], dtype=torch.uint8)
    for shape in ((1, size), (size, 1)):
        P_x = gridwise.world().create_cartesian_topology_partition(shape)
        loss = nn.DistributedCrossEntropyLoss(P_x)
        compare(loss, torch.nn.CrossEntropyLoss(), x, target, P_x)
        compare(nn.DistributedNLLLoss(P_x), torch.nn.NLLLoss(), x.log_softmax(1), target, P_x)
        few, mine = x[:, :100], target[gridwise.local_slice(P_x, x.shape)[:1]]
        with pytest.raises(gridwise.errors.PartitionError, match=r"needs targets from 0 to 99 .*got 156"):
            nn.DistributedCrossEntropyLoss(P_x)(few[gridwise.local_slice(P_x, few.shape)], mine)


@workers(2)
def test_large_logits_keep_their_digits() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 2])
    x = torch.randn(64, 6) + 1e4
    target = torch.randint(6, (64,))
    compare(nn.DistributedCrossEntropyLoss(P_x), torch.nn.CrossEntropyLoss(), x, target, P_x)


@workers(2)
def test_classes_that_do_not_exist_raise_everywhere() -> None:
    rank = gridwise.world().rank
    for shape in ((2, 1), (1, 2)):
        P_x = gridwise.world().create_cartesian_topology_partition(shape)
        loss = nn.DistributedCrossEntropyLoss(P_x)
        classes = 4 // shape[1]
        on_host = torch.get_default_device().type == "cpu"
        for _ in range(2 if on_host else 1):  # before and after the layer is set up; then a device looks for itself
            with pytest.raises(gridwise.errors.PartitionError, match=r"worker 1: needs targets from 0 to 3 .*got 4"):
                loss(torch.zeros(2, classes), torch.tensor([0, 3 + rank]))
            loss(torch.zeros(2, classes), torch.tensor([0, 3]))
        with pytest.raises(gridwise.errors.PartitionError, match="needs class indices of dtype int64"):
            loss(torch.zeros(2, classes), torch.zeros(2, dtype=torch.int32))
        with pytest.raises(gridwise.errors.PartitionError, match=r"`weight` of shape \(3,\) needs one entry"):
            nn.DistributedCrossEntropyLoss(P_x, weight=torch.ones(3))(torch.zeros(2, classes), torch.tensor([0, 3]))
