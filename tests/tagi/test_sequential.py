"""The network as its users see it: arrays and tensors, buffers, state dictionaries, files, switches."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import gridwise.tagi.nn as nn
from gridwise.errors import ArgumentError, GridwiseError


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.MixtureReLU(), nn.Linear(6, 2))


def images() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, (3, 2), padding=1, in_width=7, in_height=5),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.ResNetBlock(nn.LayerBlock(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)), nn.Conv2d(3, 3, 1)),
        nn.MaxPool2d(2, 2),
        nn.Linear(3 * 2 * 4, 2),
    )


def train(net: nn.Sequential, x: object, y: np.ndarray) -> None:
    net(x)
    nn.OutputUpdater(net.device).update(net.output_z_buffer, y, np.full(y.size, 0.1), net.input_delta_z_buffer)
    net.backward()
    net.step()


def test_arrays_give_flat_arrays_and_tensors_give_tensors() -> None:
    net = small()
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    flat = net(x.reshape(-1))
    assert all(isinstance(a, np.ndarray) and a.shape == (6,) and a.dtype == np.float32 for a in flat)
    shaped = net(torch.from_numpy(x))
    assert all(isinstance(t, torch.Tensor) and t.shape == (3, 2) for t in shaped)
    for a, t in zip(flat, shaped, strict=True):
        np.testing.assert_array_equal(a, t.numpy().reshape(-1))
    np.testing.assert_array_equal(net.get_outputs()[0], flat[0])


def test_images_of_any_shape_and_batches_of_any_size() -> None:
    net = images()
    rng = np.random.default_rng(0)
    for batch in (4, 1, 7, 2):
        train(net, rng.standard_normal(batch * 35).astype(np.float32), rng.standard_normal(batch * 2))
        assert net.output_z_buffer.block_size == batch
        assert net.output_z_buffer.actual_size == 2
    assert all(torch.isfinite(p).all() for p in net.parameters())
    assert all((p > 0).all() for name, p in net.named_parameters() if "var_" in name)


def test_a_certain_input_equals_one_with_zero_variance() -> None:
    torch.manual_seed(0)
    for net, shape in ((small(), (3, 4)), (images(), (3, 1, 5, 7)), (nn.Sequential(nn.LSTM(2, 3, 4)), (3, 4, 2))):
        x = torch.randn(shape)
        for certain, zero in zip(net(x), net(x, torch.zeros_like(x)), strict=True):
            torch.testing.assert_close(certain, zero)


def test_state_dict_is_torchs_and_loads_pytagis() -> None:
    net = images()
    names = list(net.state_dict())
    assert {"Conv2d.0.mu_w", "Conv2d.0.var_b", "BatchNorm2d.1.running_mean", "Linear.5.mu_w"} <= set(names)
    assert "ResNetBlock.3.main_block.Conv2d.0.mu_w" in names
    other = images()
    other.load_state_dict(net.state_dict())
    x = torch.randn(2, 1, 5, 7)
    torch.testing.assert_close(other.eval()(x), net.eval()(x))
    form = net.pytagi_state_dict()
    assert sorted(form) == [
        "BatchNorm2d.1", "BatchNorm2d.main.3.1", "Conv2d.0", "Conv2d.main.3.0", "Conv2d.shortcut.3", "Linear.5",
    ]  # fmt: skip
    third = images()
    third.load_state_dict(form)
    torch.testing.assert_close(third.pytagi_state_dict(), form)
    assert net.get_submodule("Conv2d.0") is net.layers[0]
    assert not any(p.requires_grad for p in net.parameters())


def test_loading_what_does_not_fit_is_refused() -> None:
    net = small()
    form = net.pytagi_state_dict()
    with pytest.raises(ArgumentError, match="names of the layers differ"):
        net.load_state_dict({"Linear.1": form["Linear.0"]})
    with pytest.raises(ArgumentError, match=r"Linear\.0\.mu_w has 24 values here and 3"):
        net.load_state_dict(form | {"Linear.0": ([1.0] * 3, [1.0] * 3, [], [])})


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    """Also where the first layers fit, and the last does not."""
    wider = nn.Sequential(nn.Linear(4, 6), nn.MixtureReLU(), nn.Linear(6, 2, bias=False))
    net, prefix = small(), str(tmp_path / "net")
    before = copy.deepcopy(net.state_dict())
    wider.save(prefix)
    wider.save_csv(prefix)
    for load in (
        lambda: net.load(prefix),
        lambda: net.load_csv(prefix),
        lambda: net.load_state_dict(wider.pytagi_state_dict()),
    ):
        with pytest.raises(ArgumentError):
            load()
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    precise = nn.Sequential(nn.Linear(4, 6)).double()
    precise.layers[0].mu_w.copy_(torch.randn(6, 4, dtype=torch.float64))
    precise.save_csv(prefix)
    other = copy.deepcopy(precise)
    other.layers[0].init_weight_bias()
    other.load_csv(prefix)
    assert torch.equal(other.layers[0].mu_w, precise.layers[0].mu_w)


def test_threads_get_their_own_outputs() -> None:
    net, wrong = small().eval(), []
    inputs = [np.full((3, 4), value, np.float32) for value in range(4)]
    wanted = [net(x)[0] for x in inputs]

    def ask(i: int) -> None:
        wrong.extend(i for _ in range(100) if not np.allclose(net(inputs[i])[0], wanted[i], atol=1e-5))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    assert not wrong


def test_files_come_back(tmp_path: Path) -> None:
    net = images()
    rng = np.random.default_rng(0)
    train(net, rng.standard_normal(4 * 35).astype(np.float32), rng.standard_normal(8))
    x = torch.randn(2, 1, 5, 7)
    net.save(str(tmp_path / "net.bin"))
    other = images()
    other.load(str(tmp_path / "net.bin"))
    torch.testing.assert_close(other.eval()(x), net.eval()(x))
    net.save_csv(str(tmp_path / "net"))
    third = images()
    third.load_csv(str(tmp_path / "net"))
    torch.testing.assert_close(third.Linear["5"].mu_w, net.Linear["5"].mu_w)
    fourth = images()
    fourth.params_from(net)
    torch.testing.assert_close(fourth.eval()(x), net(x))
    with pytest.raises(ArgumentError, match=r"another network|expected"):
        small().load(str(tmp_path / "net.bin"))
    (tmp_path / "short.bin").write_bytes((tmp_path / "net.bin").read_bytes()[:100])
    with pytest.raises(ArgumentError, match="ends inside"):
        images().load(str(tmp_path / "short.bin"))


def test_networks_can_be_copied_and_pickled() -> None:
    net = images()
    x = torch.randn(2, 1, 5, 7)
    net(x)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(twin.eval()(x), net.eval()(x))
        net.train()


def test_input_states_are_updated_if_asked() -> None:
    """A network that is the identity, up to little: observing y pulls the input towards it."""
    net = nn.Sequential(nn.Linear(1, 1))
    layer = net.layers[0]
    for p, value in ((layer.mu_w, 2.0), (layer.var_w, 0.0), (layer.mu_b, 0.0), (layer.var_b, 0.0)):
        p.fill_(value)
    net.input_state_update = True
    net(np.array([1.0]), np.array([0.5]))
    nn.OutputUpdater().update(net.output_z_buffer, np.array([3.0]), np.array([0.25]), net.input_delta_z_buffer)
    net.backward()
    delta, delta_var = net.get_input_states()
    gain = 0.5 * 2 / (4 * 0.5 + 0.25)
    assert 1.0 + delta[0] * 0.5 == pytest.approx(1.0 + gain * (3.0 - 2.0))
    assert 0.5 + delta_var[0] * 0.25 == pytest.approx(0.5 * (1 - gain * 2))


def test_innovations_can_be_set_by_hand() -> None:
    net = small()
    net(np.zeros(8, np.float32))
    net.set_delta_z(np.arange(4.0), -np.ones(4))
    assert net.input_delta_z_buffer.innovation.mu.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
    net.backward()
    assert net.layers[2].delta_mu_b.tolist() == pytest.approx((net.layers[2].var_b * torch.tensor([2.0, 4.0])).tolist())


def test_backward_with_stale_observations_is_refused() -> None:
    net = small()
    train(net, np.zeros(8, np.float32), np.zeros(4))
    net(np.zeros(12, np.float32))
    with pytest.raises(GridwiseError, match=r"call OutputUpdater\.update after each forward"):
        net.backward()


def test_float64() -> None:
    torch.manual_seed(0)
    net = images()
    double = copy.deepcopy(net).double()
    x, y = torch.randn(4, 1, 5, 7), torch.randn(4, 2)
    for n in (net, double):
        nn.TrainStep(n)(x, y, 0.1)
    assert next(double.parameters()).dtype == torch.float64
    for name, p in net.state_dict().items():
        torch.testing.assert_close(p.double(), double.state_dict()[name].double(), rtol=1e-4, atol=1e-5)


def test_running_statistics_start_with_the_first_batch() -> None:
    net = nn.Sequential(nn.BatchNorm2d(3))
    x = torch.randn(8, 3) * 2 + 5
    net(x)
    norm = net.layers[0]
    torch.testing.assert_close(norm.running_mean, x.mean(0))
    torch.testing.assert_close(norm.running_var, x.var(0))
    net(x + 1)
    torch.testing.assert_close(norm.running_mean, x.mean(0) + 0.1)
    running, _, now, _ = net.get_norm_mean_var()["BatchNorm2d()_0"]
    np.testing.assert_allclose(now[0], (x + 1).mean(0), rtol=1e-5)
    np.testing.assert_allclose(running[0], x.mean(0) + 0.1, rtol=1e-5)
    original = nn.Sequential(nn.BatchNorm2d(3), compat="cutagi")
    original(x)
    torch.testing.assert_close(original.layers[0].running_mean, 0.1 * x.mean(0))


def test_lstm_sees_the_order_of_a_sequence_and_keeps_states_only_where_it_should() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.LSTM(1, 4, 5), nn.Linear(20, 1))
    x = torch.randn(2, 5, 1)
    assert not torch.allclose(nn.LSTM.forward(net.layers[0], nn.Gaussian(x)).mu[:, -1], net(x)[0][:, :1])
    forwards, backwards = (net.layers[0].forward(nn.Gaussian(t)).mu for t in (x, x.flip(1)))
    assert not torch.allclose(forwards, backwards.flip(1))
    torch.testing.assert_close(net(x), net(x))  # windows are independent of one another
    online = nn.Sequential(nn.LSTM(1, 4, 1))
    online.params_from(nn.Sequential(net.layers[0]))
    online.eval()
    steps = torch.stack([online(x[:, t])[0][:, 0] for t in range(5)], 1)
    torch.testing.assert_close(steps, forwards)  # one step at a time is the same recursion
    states = online.get_lstm_states()
    online.reset_lstm_states()
    assert not online.get_lstm_states()[0][0].any()
    online.set_lstm_states(states)
    for mine, theirs in zip(online.get_lstm_states()[0], states[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_states_inside_a_block_can_be_read_and_set() -> None:
    net = nn.Sequential(nn.LSTM(1, 2, 1), nn.LayerBlock(nn.Linear(2, 2), nn.LSTM(2, 3, 1)), nn.Linear(3, 1))
    net(torch.ones(1, 1))
    states = net.get_lstm_states()
    assert list(states) == [0, "1.1"]
    want, _ = net(torch.ones(1, 1))
    net.reset_lstm_states()
    net.set_lstm_states(states)
    assert torch.equal(net(torch.ones(1, 1))[0], want)
    with pytest.raises(ArgumentError, match=r"layers 0, 1\.1 have states, not 1"):
        net.set_lstm_states({1: states[0]})


def test_values_come_out_of_a_network_in_bfloat16(tmp_path: Path) -> None:
    net = nn.Sequential(nn.LSTM(1, 2, 1), nn.Linear(2, 2), nn.BatchNorm2d(2)).bfloat16()
    net(torch.ones(3, 1))
    assert net.get_lstm_states()[0][0].dtype == np.float32
    assert net.get_norm_mean_var()["BatchNorm2d()_2"][0][0].dtype == np.float32
    net.save(str(tmp_path / "net.bin"))
    other = nn.Sequential(nn.LSTM(1, 2, 1), nn.Linear(2, 2), nn.BatchNorm2d(2)).bfloat16()
    other.load(str(tmp_path / "net.bin"))
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in other.state_dict().items())


def test_smoother_uses_the_future() -> None:
    """Observations of a random walk with a gap: in the gap, smoothed variances are smaller than filtered ones."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.SLSTM(1, 8), nn.SLSTM(8, 8), nn.SLinear(8, 1))
    updater = nn.OutputUpdater()
    series = np.cumsum(0.3 * np.random.default_rng(0).standard_normal(40))
    filtered = []
    for t, value in enumerate(series):
        _, var = net(np.array([value if t < 20 else 0.0], np.float32))
        filtered.append(float(var[0]))
        seen = np.array([np.nan if 20 <= t < 30 else value])
        updater.update(net.output_z_buffer, seen, np.array([0.01]), net.input_delta_z_buffer)
        net.backward()
        net.step()
    mu, var = net.smoother()
    assert mu.shape == var.shape == (40,)
    assert (var > 0).all()
    assert var[20:30].mean() < np.mean(filtered[20:30])
    assert len(net.get_lstm_states(time_step=3)) == 2
    with pytest.raises(GridwiseError, match="no SLSTM layer with steps"):
        net.smoother()
    for after in (nn.Linear(8, 1), nn.Tanh()):  # else the result would be that of the layers before it
        with pytest.raises(GridwiseError, match="stands after the last SLSTM"):
            nn.Sequential(nn.SLSTM(1, 8), after, nn.SLinear(8, 1)).smoother()


def test_the_originals_smoother_has_states_for_one_sample_only() -> None:
    net = nn.Sequential(nn.SLSTM(1, 2), nn.SLinear(2, 1), compat="cutagi")
    train(net, torch.ones(3, 1), np.zeros(3))
    assert all(torch.isfinite(p).all() for p in net.parameters())


def test_errors_teach() -> None:
    with pytest.raises(ArgumentError, match="not a whole number of samples"):
        small()(np.zeros(7))
    with pytest.raises(ArgumentError, match=r"fix: Linear\(5, 2\)"):
        nn.Linear(3, 2).forward(nn.Gaussian(torch.zeros(2, 5)))
    with pytest.raises(ArgumentError, match="in_width"):
        nn.Sequential(nn.Conv2d(1, 1, 3))(np.zeros(9))
    with pytest.raises(ArgumentError, match="main block gives shape"):
        nn.ResNetBlock(nn.Linear(3, 2)).forward(nn.Gaussian(torch.zeros(1, 3)))
    with pytest.raises(ArgumentError, match="odd number of units"):
        nn.EvenExp().forward(nn.Gaussian(torch.zeros(1, 3)))
    with pytest.raises(ArgumentError, match="'He' or 'Xavier'"):
        nn.Linear(2, 2, init_method="Glorot")
    with pytest.raises(ArgumentError, match="None or 'cutagi'"):
        nn.Sequential(nn.Linear(2, 2), compat="pytagi")


def test_describes_itself() -> None:
    net = images()
    net(torch.zeros(1, 1, 5, 7))
    assert net.get_layer_stack_info().splitlines()[0] == "Conv2d(1,3,8,5,(3, 2))"
    assert net.device == "cpu"
    assert "Linear(" in repr(net)


def test_a_network_may_begin_with_pooling() -> None:
    net = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(1, 2, 1))
    x = torch.randn(3, 1, 4, 6)
    first = net(x)[0]
    assert torch.equal(net(x)[0], first)
    assert torch.equal(torch.from_numpy(net(x.reshape(-1).numpy())[0]), first.reshape(-1))
