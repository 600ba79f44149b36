"""A network on a grid is the network on one worker: outputs, innovations, parameters and running statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import gridwise
import gridwise.tagi.nn as nn
from gridwise.errors import ArgumentError, GridwiseError
from gridwise.partition import CartesianPartition
from gridwise.tagi import GridSequential, on_grid
from gridwise.testing import workers

GRIDS = {
    1: [(1, 1, 1, 1)],
    2: [(1, 1, 2, 1), (2, 1, 1, 1)],
    3: [(1, 1, 1, 3)],
    4: [(1, 1, 2, 2), (2, 1, 1, 2)],
}


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 4, padding=1),
        nn.MixtureReLU(),
        nn.AvgPool2d(3, 2),
        nn.Conv2d(3, 4, (2, 3), padding=(1, 1), padding_type=2, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2, 2, 1, 1),
        nn.Linear(4 * 2 * 1, 5),
        nn.BatchNorm2d(5),
        nn.Tanh(),
        nn.Linear(5, 2),
    )


def resnet() -> nn.Sequential:
    def unit(cin: int, cout: int, kind: int = 1) -> list[nn.BaseLayer]:
        conv = nn.Conv2d(cin, cout, 3, bias=False, padding=1, stride=kind, padding_type=kind)
        return [conv, nn.MixtureReLU(), nn.BatchNorm2d(cout)]

    shortcut = nn.LayerBlock(nn.Conv2d(2, 3, 2, bias=False, stride=2), nn.MixtureReLU(), nn.BatchNorm2d(3))
    return nn.Sequential(
        nn.ResNetBlock(nn.LayerBlock(*unit(2, 2), *unit(2, 2))),
        nn.ResNetBlock(nn.LayerBlock(*unit(2, 3, 2), *unit(3, 3)), shortcut),
        nn.AvgPool2d(2, 1),
        nn.Linear(3 * 3 * 2, 2),
        nn.Remax(),
    )


def images_to_images() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=2, dilation=2),
        nn.Tanh(),
        nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.MaxPool2d(3, 1, 1, 2),
        nn.ConvTranspose2d(4, 1, (4, 2), stride=(3, 4), padding=1, padding_type=2, dilation=(1, 2)),
        nn.Softplus(),
    )


def grid(shape: tuple[int, ...]) -> CartesianPartition:
    return gridwise.world().create_cartesian_topology_partition(shape)


def block(P: CartesianPartition, whole: Tensor) -> Tensor:
    return whole[gridwise.local_slice(P, whole.shape)]


def learn(net: nn.Sequential | GridSequential, x: Tensor, var: Tensor | None, y: Tensor) -> None:
    net(x, var)
    nn.OutputUpdater(net.device).update(net.output_z_buffer, y, torch.full_like(y, 0.1), net.input_delta_z_buffer)
    net.backward()
    net.step()


def assert_same_state(net: nn.Sequential, like: nn.Sequential) -> None:
    for (name, value), expected in zip(net.state_dict().items(), like.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@workers(1, 2, 3, 4)
@pytest.mark.parametrize("build", [cnn, resnet, images_to_images])
def test_ten_steps_equal_those_of_one_worker(build: Callable[[], nn.Sequential]) -> None:
    for shape in GRIDS[gridwise.world().size]:
        P_x, random = grid(shape), np.random.default_rng(5)
        torch.manual_seed(2)
        alone = build().double()
        alone.input_state_update = True
        net = on_grid(copy.deepcopy(alone), P_x)
        with torch.no_grad():
            shape_y = copy.deepcopy(alone).eval()(torch.zeros(1, 2, 9, 7, dtype=torch.float64))[0].shape[1:]
        for step in range(10):
            n = int(random.integers(1, 6))
            x = torch.from_numpy(random.standard_normal((n, 2, 9, 7)))
            var = torch.from_numpy(random.random((n, 2, 9, 7))) if step % 2 else None
            y = torch.from_numpy(random.standard_normal((n, *shape_y)))
            learn(alone, x, var, y)
            learn(net, block(P_x, x), None if var is None else block(P_x, var), block(net.P_y, y))
            for got, whole in zip(net.get_outputs(), alone.output_z_buffer.gaussian[:2], strict=True):
                mine = block(net.P_y, whole).reshape(-1)
                torch.testing.assert_close(torch.from_numpy(got), mine, rtol=1e-10, atol=1e-10)
            for got, whole in zip(*(m.output_delta_z_buffer.innovation for m in (net.model, alone)), strict=True):
                torch.testing.assert_close(got, block(P_x, whole), rtol=1e-9, atol=1e-10)
            assert_same_state(net.model, alone)
        gridwise.nn.check_replicas(net.model)


@workers(4)
def test_blocks_of_any_size_and_empty_ones() -> None:
    """Uneven cuts of the input, and more workers than rows in the middle of the network."""
    for shape, cuts in (((1, 1, 4, 1), (0, 1, 1, 7, 9)), ((1, 1, 1, 4), (0, 0, 5, 6, 7))):
        P_x, dim = grid(shape), 2 if shape[2] > 1 else 3
        for build in (cnn, resnet, images_to_images):
            torch.manual_seed(2)
            alone = build().double()
            net = on_grid(copy.deepcopy(alone), P_x)
            for _ in range(2):
                x = torch.randn(3, 2, 9, 7, dtype=torch.float64)
                mine = x.narrow(dim, cuts[P_x.rank], cuts[P_x.rank + 1] - cuts[P_x.rank])
                y = torch.randn_like(copy.deepcopy(alone)(x)[0])
                learn(alone, x, None, y)
                learn(net, mine, None, block(net.P_y, y))
                assert_same_state(net.model, alone)


def some_layer(random: np.random.Generator) -> nn.BaseLayer:
    """A windowed layer of any kind, with any window."""

    def pair(low: int, high: int) -> tuple[int, int]:
        return int(random.integers(low, high)), int(random.integers(low, high))

    kind, window = int(random.integers(3)), (pair(0, 2), int(random.integers(3)))
    if random.random() < 0.3:
        return nn.AvgPool2d(pair(2, 4), pair(1, 4), *window)
    if random.random() < 0.3:
        return nn.MaxPool2d(pair(2, 4), pair(1, 4), *window)
    layer = nn.ConvTranspose2d if kind == 0 else nn.Conv2d
    return layer(2, 2, pair(2, 4), True, pair(1, 4), *window, dilation=pair(1, 3), groups=int(random.integers(1, 3)))


@workers(3, 4)
def test_windows_of_all_kinds() -> None:
    """Two random layers after one another, on images of random sizes: also sizes that leave some workers nothing."""
    random, done = np.random.default_rng(11), 0
    for case in range(40):
        shapes = {3: [(1, 1, 3, 1), (1, 1, 1, 3)], 4: [(1, 1, 2, 2), (1, 1, 4, 1), (2, 1, 1, 2)]}[gridwise.world().size]
        P_x = grid(shapes[case % len(shapes)])
        torch.manual_seed(case)
        alone = nn.Sequential(some_layer(random), nn.Tanh(), some_layer(random), nn.Conv2d(2, 1, 1)).double()
        x = torch.from_numpy(random.standard_normal((2, 2, *random.integers(4, 11, 2))))
        try:
            y = torch.from_numpy(random.standard_normal(alone(x)[0].shape))
        except (RuntimeError, ValueError):  # a window larger than the image
            continue
        alone.input_state_update = True
        net = on_grid(copy.deepcopy(alone), P_x)
        learn(alone, x, None, y)
        learn(net, block(P_x, x), None, block(net.P_y, y))
        mine = block(P_x, alone.output_delta_z_buffer.innovation.mu)
        torch.testing.assert_close(net.model.output_delta_z_buffer.innovation.mu, mine, rtol=1e-10, atol=1e-10)
        assert_same_state(net.model, alone)
        done += 1
    assert done > 20


@workers(1, 4)
def test_evaluation_arrays_and_the_model_on_its_own() -> None:
    P_x = grid((1, 1, 1, 1) if gridwise.world().size == 1 else (1, 1, 2, 2))
    net = on_grid(cnn(), P_x)
    x = np.random.default_rng(0).standard_normal((4, 2, 9, 7)).astype(np.float32)
    net.eval()
    mu, var = net(x[gridwise.local_slice(P_x, x.shape)])
    assert isinstance(mu, np.ndarray)
    assert net.output_to_host() == mu.tolist()
    if gridwise.world().rank == 0:  # whole images, nobody else
        alone, _ = net.model(x)
        np.testing.assert_allclose(mu, alone[: mu.size], rtol=1e-4, atol=1e-5)
    assert (var > 0).all()
    net.train()
    net.barrier()
    assert net.state_dict().keys() == cnn().state_dict().keys()


@workers(3)
def test_workers_outside_the_grid_have_nothing_to_do() -> None:
    P_x = gridwise.world().create_partition_inclusive([0, 2]).create_cartesian_topology_partition([1, 1, 2, 1])
    net = on_grid(cnn(), P_x)
    x = torch.randn(2, 2, 9, 7)
    if P_x.active:
        learn(net, block(P_x, x), None, torch.ones(1, 2))
    else:
        assert net(gridwise.zero_volume_tensor())[0].numel() == 0
        net.backward()
        net.step()


@workers(1, 2, 4)
def test_errors_are_everybodys() -> None:
    P = gridwise.world()
    P_x = P.create_cartesian_topology_partition([1, 1, P.size, 1])
    last = P.rank == P.size - 1
    for wrong in (P, P.create_cartesian_topology_partition([1, P.size, 1, 1]) if P.size > 1 else None):
        with pytest.raises(ArgumentError, match="P_x"):
            on_grid(cnn(), wrong)  # type: ignore[arg-type]
    net = on_grid(cnn(), P_x)
    for bad in (torch.ones(2, 18), torch.ones(1, 3, 9, 7)):
        with pytest.raises(GridwiseError, match="channel"):
            net(bad if last or bad.ndim == 4 else torch.ones(1, 2, 9, 7))
    with pytest.raises(GridwiseError, match=r"forward|innovations"):
        net.backward()
    with pytest.raises(GridwiseError, match="sequence"):
        net([[1.0, 2.0], [3.0]] if last else torch.ones(1, 2, 9, 7))
    if P.size > 1:
        with pytest.raises(GridwiseError, match="blocks that form a grid"):
            net(torch.ones(1, 2, 5, 7 if last else 6))
    learn(net, block(P_x, torch.ones(4, 2, 9, 7)), None, block(net.P_y, torch.ones(4, 2)))  # and it goes on


@workers(2)
def test_whole_images_instead_of_blocks_are_told() -> None:
    P_x = grid((1, 1, 2, 1))
    net = on_grid(
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, in_width=8, in_height=8), nn.ReLU(), nn.Linear(128, 1)), P_x
    )
    x = torch.ones(2, 1, 8, 8)
    with pytest.raises(ArgumentError, match=r"(?s)`in_height` \(=8\).*height 16 and width 8.*fix: .*local_slice"):
        net(x)
    assert net(block(P_x, x))[0].shape == (1, 1)  # and it goes on
    net.model.eval()(torch.ones(1, 1, 8, 8))  # alone, on whole images
    assert net(block(P_x, x))[0].shape == (1, 1)
