"""Whole models: the same losses and gradients as the sequential ones."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.testing import workers

from .whole_models import ConvNeXt, LeNet5, MobileNet, ResNet18, SegNet, UNet, ViT, train_both


@workers(4, transports=("mpi",))
@pytest.mark.parametrize("grid", [(1, 1, 2, 2), (2, 1, 1, 2), (1, 2, 1, 2)])
def test_lenet(grid: tuple[int, ...]) -> None:
    P_x = gridwise.world().create_cartesian_topology_partition(grid)
    train_both(LeNet5().double(), P_x, (6, 1, 28, 28), 10, steps=10)


@workers(4, transports=("mpi",))
def test_resnet18() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 2))
    train_both(ResNet18().double(), P_x, (3, 3, 67, 45), 5, steps=10)


@workers(4, transports=("mpi",))
@pytest.mark.parametrize("bilinear", [False, True])
def test_unet_on_uneven_sizes(bilinear: bool) -> None:
    P_x = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 2))
    train_both(UNet(bilinear=bilinear).double(), P_x, (2, 2, 23, 30), 3, steps=10)


@workers(2)
@pytest.mark.parametrize("grid", [(1, 1, 2, 1), (1, 1, 1, 2), (2, 1, 1, 1), (1, 2, 1, 1)])
def test_segnet_on_uneven_sizes(grid: tuple[int, ...]) -> None:
    P_x = gridwise.world().create_cartesian_topology_partition(grid)
    torch.manual_seed(0)
    train_both(SegNet().double(), P_x, (2, 2, 19, 14), 3, steps=3)


@workers(1, 2, 4, transports=("mpi",))
def test_convnext(gridwise_setting: tuple[str, int]) -> None:
    """Channels last by permute, linear layers on them, a norm by function, a layer scale, and a mean over space."""
    for grid in {1: [(1, 1, 1, 1)], 2: [(1, 1, 2, 1), (1, 2, 1, 1)], 4: [(1, 1, 2, 2), (2, 1, 1, 2)]}[
        gridwise_setting[1]
    ]:
        P_x = gridwise.world().create_cartesian_topology_partition(grid)
        torch.manual_seed(0)
        train_both(ConvNeXt().double(), P_x, (3, 3, 44, 29), 5, steps=4)


@workers(2, 4, transports=("mpi",))
def test_attention_and_gates(gridwise_setting: tuple[str, int]) -> None:
    for grid in {2: [(1, 1, 2, 1)], 4: [(1, 1, 2, 2), (1, 2, 1, 2)]}[gridwise_setting[1]]:
        P_x = gridwise.world().create_cartesian_topology_partition(grid)
        torch.manual_seed(0)
        train_both(ViT().double(), P_x, (3, 3, 8, 12), 5, steps=3)
        train_both(MobileNet().double(), P_x, (3, 3, 13, 10), 5, steps=3)


@workers(1, 2, 3, transports=("gloo",))
def test_models_over_gloo() -> None:
    size = gridwise.world().size
    P_x = gridwise.world().create_cartesian_topology_partition((1, 1, size, 1))
    train_both(LeNet5().double(), P_x, (4, 1, 28, 28), 10, steps=2)
    train_both(UNet().double(), P_x, (1, 2, 13, 9), 3, steps=2)
