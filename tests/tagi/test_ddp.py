"""Data-parallel training is training on one worker: the same parameters and running statistics after every step."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import gridwise
import gridwise.tagi.distributed.replicas as replicas
import gridwise.tagi.nn as nn
from gridwise.errors import ArgumentError, GridwiseError, UnsupportedError
from gridwise.tagi import Classifier, Forecaster, Regressor
from gridwise.testing import workers

STEPS = 10


def fnn() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.MixtureReLU(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 2))


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 2, padding=1, in_width=3, in_height=2),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.AvgPool2d(2, 1),
        nn.Linear(3 * 2 * 3, 4),
        nn.BatchNorm2d(4),
        nn.Linear(4, 2),
    )


def resnet() -> nn.Sequential:
    def unit(cin: int, cout: int, stride: int = 1) -> nn.LayerBlock:
        conv = nn.Conv2d(cin, cout, 3, bias=False, padding=1, stride=stride)
        return nn.LayerBlock(conv, nn.MixtureReLU(), nn.BatchNorm2d(cout))

    shortcut = nn.LayerBlock(nn.Conv2d(2, 3, 1, bias=False, stride=2), nn.BatchNorm2d(3))
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, in_width=3, in_height=2),
        nn.ResNetBlock(nn.LayerBlock(unit(2, 2), unit(2, 2))),
        nn.ResNetBlock(nn.LayerBlock(unit(2, 3, 2), unit(3, 3)), shortcut),
        nn.Linear(3 * 1 * 2, 2),
    )


def series() -> nn.Sequential:
    return nn.Sequential(nn.LSTM(1, 3, 6), nn.Linear(18, 4), nn.LayerNorm([4]), nn.Linear(4, 2), nn.RMSNorm([2]))


def config(**other: object) -> nn.DDPConfig:
    P = gridwise.world()
    backend = "gloo" if P.transport.name == "solo" else P.transport.name
    arguments = {"device_ids": [], "backend": backend, "rank": P.rank, "world_size": P.size} | other
    return nn.DDPConfig(**arguments)  # type: ignore[arg-type]


def batches(count: int = STEPS) -> Iterator[tuple[Tensor, Tensor, slice]]:
    """Inputs, observations, and the part of this worker: uneven, changing, and at times empty."""
    P, random = gridwise.world(), np.random.default_rng(7)
    for _ in range(count):
        n = int(random.integers(2, 9))
        cuts = [0, *sorted(random.integers(0, n + 1, P.size - 1)), n]
        x, y = random.standard_normal((n, 6)), random.standard_normal((n, 2))
        yield torch.from_numpy(x), torch.from_numpy(y), slice(cuts[P.rank], cuts[P.rank + 1])


def learn(net: nn.Sequential | nn.DDPSequential, x: Tensor, y: Tensor) -> None:
    net(x.reshape(-1).numpy())
    nn.OutputUpdater(net.device).update(net.output_z_buffer, y, torch.full_like(y, 0.1), net.input_delta_z_buffer)
    net.backward()
    net.step()


def assert_same_state(net: nn.Sequential, like: nn.Sequential, tolerance: float = 1e-10) -> None:
    for (name, value), expected in zip(net.state_dict().items(), like.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@workers(1, 2, 3, 4)
@pytest.mark.parametrize("build", [fnn, cnn, resnet, series])
def test_sums_equal_one_worker_with_all_samples(build: Callable[[], nn.Sequential]) -> None:
    alone = build().double()
    net = nn.DDPSequential(copy.deepcopy(alone), config(), average=False)
    for x, y, mine in batches():
        learn(alone, x, y)
        learn(net, x[mine], y[mine])
        assert_same_state(net.model, alone)
    gridwise.nn.check_replicas(net.model)


@workers(1, 3)
def test_outputs_are_those_of_the_large_batch_and_running_statistics_follow() -> None:
    alone = cnn().double()
    net = nn.DDPSequential(copy.deepcopy(alone), config(), average=False)
    for x, _, mine in batches(3):
        for whole, part in zip(alone(x.reshape(-1, 1, 2, 3)), net(x[mine].reshape(-1, 1, 2, 3)), strict=True):
            torch.testing.assert_close(part, whole[mine], rtol=1e-10, atol=1e-10)
    assert_same_state(net.model, alone)
    net(torch.zeros(0, 1, 2, 3))  # nobody has any
    assert_same_state(net.model, alone)
    net.eval()
    alone.eval()
    if gridwise.world().rank == 0:  # evaluation is everyone's own business
        x = torch.randn(4, 1, 2, 3, dtype=torch.float64)
        torch.testing.assert_close(net(x)[0], alone(x)[0], rtol=1e-10, atol=1e-10)


@workers(1, 2, 4)
def test_average_divides_the_innovations_by_the_number_of_workers() -> None:
    alone = fnn().double()
    net = nn.DDPSequential(copy.deepcopy(alone), config())
    for x, y, mine in batches(3):
        alone(x)
        nn.OutputUpdater().update(alone.output_z_buffer, y, torch.full_like(y, 0.1), alone.input_delta_z_buffer)
        alone.backward()
        for layer in alone.parametric_layers():
            layer.sums = {k: (a / net.config.world_size, b / net.config.world_size) for k, (a, b) in layer.sums.items()}
        alone.step()
        learn(net, x[mine], y[mine])
        assert_same_state(net.model, alone)


@workers(2, 4)
def test_buckets_of_any_size_give_the_same() -> None:
    results = []
    for size in (1, 200, 1 << 20):
        replicas.BUCKET = size
        torch.manual_seed(3)
        net = nn.DDPSequential(cnn().double(), config(), average=False)
        for x, y, mine in batches(3):
            learn(net, x[mine], y[mine])
        results.append(net.model)
    replicas.BUCKET = 4 << 20
    for other in results[1:]:
        assert_same_state(other, results[0], 1e-12)


@workers(1, 2, 3)
def test_everyone_starts_from_worker_0() -> None:
    torch.manual_seed(gridwise.world().rank)
    model = cnn()
    model.layers[1].running_mean.fill_(gridwise.world().rank)  # type: ignore[union-attr]
    net = nn.DDPSequential(model, config())
    gridwise.nn.check_replicas(net.model)
    torch.manual_seed(0)
    assert_same_state(model, cnn(), 0.0)
    assert net.state_dict().keys() == cnn().state_dict().keys()


@workers(1, 2)
def test_the_interface() -> None:
    net = nn.DDPSequential(fnn(), config(device_ids=[0, 1]), average=True)
    assert net.get_device_with_index() == "cpu"
    x, y = np.ones((3, 6), np.float32), np.zeros(6, np.float32)
    mu, var = net.forward(x, np.full((3, 6), 0.1, np.float32))
    assert isinstance(mu, np.ndarray)
    assert mu.shape == var.shape == (6,)
    np.testing.assert_array_equal(net.get_outputs()[0], mu)
    assert net.output_to_host() == mu.tolist()
    assert net.output_z_buffer.block_size == 3
    updater = nn.OutputUpdater(net.get_device_with_index())
    updater.update(net.output_z_buffer, y, np.full(6, 0.1, np.float32), net.input_delta_z_buffer)
    assert net.input_delta_z_buffer.delta_mu.shape == (3, 2)
    net.backward()
    net.step()
    net.barrier()
    net.eval()
    assert not net.model.training
    net.train()
    assert net.model.training
    assert net.config.device_ids == [0, 1]
    assert "world_size" in repr(net.config)


@workers(1, 2)
def test_train_step_and_estimators_share_the_sums() -> None:
    alone = fnn().double()
    net = nn.DDPSequential(copy.deepcopy(alone), config(), average=False)
    step = nn.TrainStep(net.model)
    for x, y, mine in batches(3):
        learn(alone, x, y)
        step(x[mine], y[mine], 0.1)
        assert_same_state(net.model, alone)
    Regressor(net.model, sigma_v=0.3).fit(torch.randn(8, 6), torch.randn(8, 2), batch_size=4, progress=False)
    gridwise.nn.check_replicas(net.model)
    if gridwise.world().size > 1:
        with pytest.raises(UnsupportedError, match="compile=False"):
            nn.TrainStep(net.model, compile=True)(torch.ones(1, 6), torch.ones(1, 2), 0.1)
    with pytest.raises(ArgumentError, match="model"):
        nn.TrainStep(net)  # type: ignore[arg-type]


@workers(2)
def test_a_copy_is_a_local_network() -> None:
    net = nn.DDPSequential(resnet(), config())
    if gridwise.world().rank == 0:
        for other in (copy.deepcopy(net.model), pickle.loads(pickle.dumps(net.model))):
            before = copy.deepcopy(other)
            learn(other, torch.ones(2, 6), torch.ones(2, 2))  # alone: a network that shares its sums would wait here
            assert_same_state(net.model, before)
            with pytest.raises(AssertionError):
                assert_same_state(other, before)


@workers(1, 2, 3)
def test_errors_are_everybodys() -> None:
    P = gridwise.world()
    last = P.rank == P.size - 1
    if not torch.cuda.is_available():
        with pytest.raises(ArgumentError, match="gloo"):
            nn.DDPSequential(fnn(), nn.DDPConfig([0], rank=P.rank, world_size=P.size))
    with pytest.raises(ArgumentError, match="world_size"):
        nn.DDPSequential(fnn(), config(world_size=P.size + 1) if last else config())
    if P.size > 1:
        with pytest.raises(ArgumentError, match=f"started over.*fix: backend='{P.transport.name}'"):
            nn.DDPSequential(fnn(), config(backend="mpi" if P.transport.name == "gloo" else "gloo"))
        with pytest.raises(ArgumentError, match="different networks"):
            nn.DDPSequential(cnn() if last else fnn(), config())
        with pytest.raises(ArgumentError, match="different networks"):  # with the same parameters
            nn.DDPSequential(nn.Sequential(nn.Linear(6, 2), nn.LeakyReLU(0.2 if last else 0.1)), config())
    net = nn.DDPSequential(fnn(), config())
    with pytest.raises(GridwiseError, match="Linear"):
        net(torch.ones(2, 5 if last else 6))
    with pytest.raises(GridwiseError, match=r"innovations|forward"):
        net.backward()
    learn(net, torch.ones(2, 6), torch.ones(2, 2))  # and it goes on
    for wrong in ({"backend": "ftp"}, {"rank": P.size}, {"device_ids": [0, -1]}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            config(**wrong)


def rows_of(n: int) -> tuple[np.ndarray, np.ndarray, slice]:
    """Data of all, far from zero and in order, and this worker's part: the last one has the most rows, the first few."""
    P, random = gridwise.world(), np.random.default_rng(3)
    x = 1e6 + np.sort(random.standard_normal((n, 6)), 0)
    cuts = [0, *(1 + 2 * r for r in range(P.size - 1)), n]
    return x, x[:, :2] * [1.0, -2.0] + 5.0, slice(cuts[P.rank], cuts[P.rank + 1])


@workers(1, 2, 3)
def test_an_estimator_standardises_by_all_rows_and_uneven_workers_train_to_the_end() -> None:
    x, y, mine = rows_of(21)
    alone = Regressor(fnn().double(), sigma_v=0.3)
    model = Regressor(copy.deepcopy(alone.net), sigma_v=0.3)
    net = nn.DDPSequential(model.net, config(), average=False)
    alone.fit(x, y, batch_size=21, epochs=2, progress=False)
    model.fit(x[mine], y[mine], batch_size=21, epochs=2, progress=False)
    for a, b in ((model.scale_x, alone.scale_x), (model.scale_y, alone.scale_y)):
        torch.testing.assert_close((a.mean, a.std), (b.mean, b.std), rtol=1e-10, atol=0.0)
    assert_same_state(net.model, alone.net, 1e-8)
    model.fit(x[mine], y[mine], batch_size=2, epochs=2, progress=False)  # not as many batches on all workers
    model.fit([(x[mine][i : i + 4], y[mine][i : i + 4]) for i in range(0, len(x[mine]), 4)], progress=False)
    gridwise.nn.check_replicas(net.model)


@workers(2, 3)
def test_a_worker_without_rows_fits_with_the_others() -> None:
    x, label = rows_of(8)[0], np.arange(8) % 2
    mine = slice(0, 0 if gridwise.world().rank == 0 else 8)

    def net(outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, outputs))

    sequences = nn.Sequential(nn.LSTM(1, 2, 6), nn.LSTM(2, 2, 6), nn.Linear(12, 2), nn.BatchNorm2d(2), nn.Linear(2, 1))
    models = Regressor(net(1)), Regressor(sequences), Classifier(net(1), 2), Classifier(net(2), 2, encoding="one-hot")
    for model in models:
        nn.DDPSequential(model.net, config(), average=False)
        model.fit(x[mine], label[mine], batch_size=4, epochs=2, progress=False)
        gridwise.nn.check_replicas(model.net)
        assert np.isfinite(model.history[-1]["error"])  # that of all rows


@workers(2, 3)
def test_data_that_one_worker_cannot_learn_from_are_refused_on_all() -> None:
    P = gridwise.world()
    x, y, _ = rows_of(8)
    model = Regressor(fnn())
    net = nn.DDPSequential(model.net, config(), average=False)
    before = copy.deepcopy(net.model.state_dict())
    bad = x.copy()
    bad[5, 1] = np.nan
    with pytest.raises(ArgumentError, match=f"worker {P.size - 1}: fit: `x` has nan in row 5, column 1"):
        model.fit(bad if P.rank == P.size - 1 else x, y, progress=False)
    with pytest.raises(ArgumentError, match="epochs"):
        model.fit(x, y, epochs=1 + P.rank, progress=False)
    with pytest.raises(ArgumentError, match="no rows"):
        model.fit(x[:0], y[:0], progress=False)
    assert all(torch.equal(value, before[name]) for name, value in net.model.state_dict().items())
    model.fit(x, y, progress=False)  # and it goes on


@workers(2)
def test_all_workers_save_one_estimator(tmp_path: Path) -> None:
    x, y, mine = rows_of(8)
    models = [Regressor(fnn()) for _ in range(2)]
    nn.DDPSequential(models[0].net, config(), average=False)
    models[0].fit(x[mine], y[mine], batch_size=4, progress=False)
    gridwise.checkpoint.save(tmp_path / "c", {"m": models[0]})
    gridwise.checkpoint.load(tmp_path / "c", into={"m": models[1]})
    np.testing.assert_array_equal(models[1].predict(x).mean, models[0].predict(x).mean)


@workers(2)
def test_a_forecaster_standardises_by_all_series() -> None:
    P = gridwise.world()
    series = np.arange(20.0) ** 2
    model = Forecaster(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), window=3)
    nn.DDPSequential(model._regressor.net, config(), average=False)
    model.fit(series[:6] if P.rank == 0 else series[6:], batch_size=4, progress=False)
    np.testing.assert_allclose([float(model._scale.mean), float(model._scale.std)], [series.mean(), series.std()])
    gridwise.nn.check_replicas(model._regressor.net)
