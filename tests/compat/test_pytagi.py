"""Scripts in the style of pytagi's users: flat arrays in and out, buffers, tuples of lists, short last batches."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

import gridwise

pytestmark = [
    pytest.mark.usefixtures("old_names"),
    pytest.mark.filterwarnings("ignore::gridwise_compat.CompatibilityNote"),
]


def test_regression() -> None:
    import pytagi
    from pytagi import Normalizer, metric
    from pytagi.nn import Linear, OutputUpdater, ReLU, Sequential

    pytagi.manual_seed(0)
    x = np.linspace(-1, 1, 50, dtype=np.float32)
    y = (x**3).astype(np.float32)
    mean, std = Normalizer.compute_mean_std(x[:, None])
    x = Normalizer.standardize(x[:, None], mean, std).flatten().astype(np.float32)
    net = Sequential(Linear(1, 30), ReLU(), Linear(30, 1))
    net.set_threads(1)
    updater = OutputUpdater(net.device)
    batch_size = 16
    var_obs = np.full((batch_size * 1,), 0.01, dtype=np.float32)  # as long as a whole batch; the last one is shorter
    for _ in range(30):
        for i in range(0, 50, batch_size):
            m_pred, v_pred = net(x[i : i + batch_size])
            updater.update(
                output_states=net.output_z_buffer,
                mu_obs=y[i : i + batch_size],
                var_obs=var_obs,
                delta_states=net.input_delta_z_buffer,
            )
            net.backward()
            net.step()
    net.eval()
    m_pred, v_pred = net(x)
    assert m_pred.shape == v_pred.shape == (50,)
    assert metric.mse(m_pred, y) < 0.02
    np.testing.assert_array_equal(np.array(net.output_z_buffer.mu_a), m_pred)
    state = net.state_dict()
    assert set(state) == {"Linear.0", "Linear.2"}
    assert [len(part) for part in state["Linear.0"]] == [30, 30, 30, 30]
    assert all(isinstance(part, list) for part in state["Linear.0"])
    twin = Sequential(Linear(1, 30), ReLU(), Linear(30, 1))
    twin.load_state_dict(state)
    np.testing.assert_array_equal(twin(x)[0], m_pred)
    assert len(net.parameters()) == 2
    other = Sequential(Linear(1, 30), ReLU(), Linear(30, 1))
    other.params_from(net)
    np.testing.assert_array_equal(other(x)[0], m_pred)
    other.preinit_layer()
    other.to_device("cpu")
    assert other.output_to_host() == m_pred.tolist()
    assert other.z_buffer_block_size == 50
    assert other.z_buffer_size == 50 * 30
    other.set_delta_z(np.arange(50.0), -np.ones(50))
    assert other.delta_z_to_host() == list(range(50))
    assert other.layers[0].get_max_num_states() == 30
    assert other.layers[0].num_threads == torch.get_num_threads() == 1


def test_attributes_can_be_set() -> None:
    from pytagi.nn import BaseDeltaStates, BaseHiddenStates, Linear, Sequential

    layer = Linear(2, 3)
    layer.mu_w = np.arange(6, dtype=np.float32)
    layer.var_b = [0.5, 0.25, 0.125]
    assert layer.num_weights == 6
    layer.num_weights = 6
    with pytest.raises(ValueError, match="num_weights"):
        layer.num_weights = 7
    with pytest.raises(ValueError, match="5 values came in for `mu_w`"):
        layer.mu_w = np.zeros(5)
    layer.mu_b = np.zeros(3)
    mean, _ = Sequential(layer)(np.array([1, 1], dtype=np.float32))
    np.testing.assert_allclose(mean, [1, 5, 9])
    layer.delta_mu_b = np.array([1.0, 0.0, -1.0])
    np.testing.assert_allclose(layer.delta_mu_b, [1, 0, -1])
    assert layer.mu_w == list(range(6))
    layer.mu_w[0] = 5.0  # a copy, as in pytagi
    assert layer.mu_w[0] == 0.0
    assert layer.delta_var_w == [0.0] * 6
    states, deltas = BaseHiddenStates(6, 2), BaseDeltaStates(6, 2)
    assert states.set_size(new_size=8, new_block_size=2) == "BaseHiddenStates"
    deltas.set_size(8, 2)
    states.mu_a = np.arange(8)
    assert states.mu_a == list(range(8))
    assert states.actual_size == 4
    assert states.jcb == [1.0] * 8


def test_users_may_derive_classes() -> None:
    import copy

    from pytagi.nn import BaseLayer, Linear, ReLU, Sequential

    class Scaled(Sequential):
        def forward(self, mu_x, var_x=None):
            return super().forward(2 * mu_x, var_x)

    class Own(Linear):
        pass

    net = Scaled(Own(1, 2), ReLU(), Linear(2, 1))
    twin = copy.deepcopy(net)
    x = np.linspace(0, 1, 4, dtype=np.float32)
    np.testing.assert_array_equal(net(x)[0], Sequential.forward(twin, 2 * x)[0])
    assert [type(layer) for layer in net.layers] == [Linear, ReLU, Linear]
    assert all(isinstance(layer, BaseLayer) for layer in net.layers)
    twin.layers[0].mu_w = np.zeros(2)
    assert any(net.layers[0].mu_w)


def test_one_network_takes_the_output_of_another() -> None:
    from pytagi.nn import Linear, Sequential

    encoder, decoder = Sequential(Linear(4, 2)), Sequential(Linear(2, 4))
    x = np.linspace(0, 1, 8, dtype=np.float32)
    mean, var = encoder(x)
    through = decoder(encoder.output_z_buffer)
    for ours, right in zip(through, decoder(mean, var), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-6)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "batch_norm", "pooling", "attention", "embedding"])
def test_the_first_layer_may_be_of_any_kind(kind: str) -> None:
    from pytagi.nn import AvgPool2d, BatchNorm2d, Embedding, LayerNorm, MultiheadAttention, Sequential
    from pytagi.nn.rms_norm import RMSNorm

    x = np.linspace(0.1, 1, 32, dtype=np.float32)
    pool = AvgPool2d(2, 2)
    pool.in_width = pool.in_height = 4
    pool.in_channels = 1
    layer, wanted = {
        "layer_norm": (LayerNorm([8]), 32),
        "rms_norm": (RMSNorm([8]), 32),
        "batch_norm": (BatchNorm2d(8), 32),
        "pooling": (pool, 8),
        "attention": (MultiheadAttention(8, 2), 32),
        "embedding": (Embedding(4, 3, input_size=2), 96),
    }[kind]
    mean, var = Sequential(layer)(np.zeros(32, np.float32) if kind == "embedding" else x)
    assert mean.shape == var.shape == (wanted,)
    assert np.isfinite(mean).all()
    if kind == "layer_norm":
        rows = mean.reshape(4, 8)
        np.testing.assert_allclose(rows.mean(1), 0, atol=1e-5)
        assert rows.std() > 0.5


def test_attention_without_a_length_takes_each_input_as_one_sequence() -> None:
    from pytagi.nn import MultiheadAttention, Sequential

    net, x = Sequential(MultiheadAttention(4, 2)), np.linspace(-1, 1, 24, dtype=np.float32)
    of_six = net(x)[0]
    of_three = net(x[:12])[0]
    np.testing.assert_allclose(of_three, of_six[:12], rtol=1e-5)  # a token attends to those before it
    np.testing.assert_array_equal(net(x)[0], of_six)
    with pytest.raises(ValueError, match="10 values is not a whole number of samples"):
        net(x[:10])
    with pytest.raises(ValueError, match="16 values is not a whole number of samples"):
        Sequential(MultiheadAttention(4, 2, seq_len=3))(x[:16])


def test_classification_by_a_tree_of_classes() -> None:
    import pytagi
    from pytagi import HRCSoftmaxMetric, Utils
    from pytagi.nn import Conv2d, Linear, MaxPool2d, OutputUpdater, ReLU, Sequential

    pytagi.manual_seed(1)
    metric, utils = HRCSoftmaxMetric(num_classes=4), Utils()
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 64)
    images = random.normal(0, 0.1, (64, 1, 8, 8)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        image[0, 4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 1.0
    net = Sequential(
        Conv2d(1, 4, 3, padding=1, in_width=8, in_height=8), ReLU(), MaxPool2d(2, 2), Linear(64, metric.hrc_softmax.len)
    )
    updater = OutputUpdater(net.device)
    for _ in range(3):
        for i in range(0, 64, 24):
            m_pred, v_pred = net(images[i : i + 24].flatten())
            obs, idx, _ = utils.label_to_obs(labels=labels[i : i + 24], num_classes=4)
            updater.update_using_indices(
                output_states=net.output_z_buffer,
                mu_obs=obs,
                var_obs=np.ones(24 * metric.hrc_softmax.num_obs),
                selected_idx=idx,
                delta_states=net.input_delta_z_buffer,
            )
            net.backward()
            net.step()
    net.eval()
    m_pred, v_pred = net(images.flatten())
    assert metric.error_rate(m_pred, v_pred, labels) < 0.1


def test_time_series_and_smoother(tmp_path) -> None:
    import pytagi
    from pytagi.nn import LSTM, SLSTM, Linear, OutputUpdater, Sequential, SLinear

    assert pytagi.__version__ == "0.2.1"
    pytagi.manual_seed(2)
    net = Sequential(LSTM(1, 4, 3), Linear(12, 1))
    updater = OutputUpdater(net.device)
    x = np.sin(np.arange(6 * 3, dtype=np.float32))
    net(x)
    updater.update(net.output_z_buffer, np.ones(6), np.full(6, 0.1), net.input_delta_z_buffer)
    net.backward()
    net.step()
    net.save(str(tmp_path / "net.bin"))
    twin = Sequential(LSTM(1, 4, 3), Linear(12, 1))
    twin.load(str(tmp_path / "net.bin"))
    np.testing.assert_array_equal(twin(x)[0], net(x)[0])
    net = Sequential(SLSTM(1, 3, 1), SLinear(3, 1))
    net.num_samples = 5
    for t in range(5):
        net(np.array([np.sin(t)], dtype=np.float32))
        updater.update(net.output_z_buffer, np.array([np.cos(t)]), np.array([0.1]), net.input_delta_z_buffer)
        net.backward()
        net.step()
    mean, var = net.smoother()
    assert mean.shape == var.shape == (5,)
    assert (var > 0).all()


def test_all_modules_come_with_the_package() -> None:
    import pytagi

    assert pytagi.nn.Linear(2, 3).num_weights == 6
    for name in ("ddp", "output_updater", "resnet_block", "sequential", "data_struct"):
        module = importlib.import_module(f"pytagi.nn.{name}")
        assert module.BaseHiddenStates is pytagi.nn.BaseHiddenStates
        assert module.BaseDeltaStates is pytagi.nn.BaseDeltaStates
    assert pytagi.tagi_utils.Utils is pytagi.Utils


def test_lists_are_lists() -> None:
    import pytagi
    from pytagi.nn import BaseDeltaStates, BaseHiddenStates

    for states, names in ((BaseHiddenStates(4, 2), "mu_a var_a jcb"), (BaseDeltaStates(4, 2), "delta_mu delta_var")):
        for name in names.split():
            assert [type(x) for x in getattr(states, name)] == [float] * 4
            setattr(states, name, np.arange(4.0))
            assert getattr(states, name) == [0.0, 1.0, 2.0, 3.0]
    utils = pytagi.Utils()
    tree = utils.get_hierarchical_softmax(10)
    assert (type(tree.obs), type(tree.idx), len(tree.idx)) == (list, list, 10 * tree.num_obs)
    right = gridwise.tagi.Utils()
    moments = np.linspace(-1, 1, 2 * tree.len, dtype=np.float32), np.full(2 * tree.len, 0.1, np.float32)
    expected = right.get_labels(*moments, right.get_hierarchical_softmax(10), 10, 2)
    for ours, theirs in zip(utils.get_labels(*moments, tree, 10, 2), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_settings_of_workers_can_be_set_one_by_one() -> None:
    from pytagi.nn import DDPConfig, DDPSequential, Linear, Sequential

    config = DDPConfig([0], "gloo", 0, 1)
    config.device_ids, config.rank, config.world_size, config.backend = [1, 2], 3, 4, "nccl"
    assert (config.device_ids, config.rank, config.world_size, config.backend) == ([1, 2], 3, 4, "nccl")
    config.rank = 7
    with pytest.raises(gridwise.errors.ArgumentError, match="`rank`"):
        DDPSequential(Sequential(Linear(1, 1)), config)


def test_sizes_of_layers_after_a_call() -> None:
    """As pytagi 0.2.1 shows them."""
    from pytagi.nn import AvgPool2d, BatchNorm2d, Conv2d, LayerBlock, Linear, ReLU, ResNetBlock, Sequential

    branch = LayerBlock(Conv2d(4, 4, 3, padding=1), ReLU(), Conv2d(4, 4, 3, padding=1))
    net = Sequential(
        Conv2d(1, 4, 3, padding=1, in_width=8, in_height=8), BatchNorm2d(4), ReLU(), ResNetBlock(branch), ReLU(),
        AvgPool2d(2, 2), Linear(64, 5), ReLU(),
    )  # fmt: skip
    assert (net.layers[2].input_size, net.layers[2].output_size) == (0, 0)
    net(np.ones(128, np.float32))
    image, small = (256, 256, 8, 8, 4), (5, 5, 4, 4, 4)
    expected = [(64, 256, 8, 8, 4), image, image, image, image, (256, 64, 4, 4, 4), (64, 5, 4, 4, 4), small]
    names = ("input_size", "output_size", "out_width", "out_height", "out_channels")
    assert [tuple(getattr(layer, name) for name in names) for layer in net.layers] == expected
    assert [(layer.input_size, layer.in_channels) for layer in branch.layers] == [(256, 4)] * 3


def test_an_updater_of_the_users_own() -> None:
    """The script of pytagi's unit test: innovations are computed from the buffers, and put where the updater puts them."""
    import pytagi
    from pytagi.nn import LSTM, Linear, OutputUpdater, Sequential

    def own_update(mu_obs, var_obs, jcb, mu, var, batch):
        jcb, mu, var = (np.array(x, dtype=np.float32).reshape(-1, batch)[0] for x in (jcb, mu, var))
        gain = jcb / (var + var_obs)
        return gain * (mu_obs - mu), -gain * jcb

    y, noise = np.linspace(-1, 1, 8, dtype=np.float32), np.full(8, 0.04, np.float32)
    x = np.sin(np.arange(32, dtype=np.float32))
    outputs = []
    for kind in ("updater", "buffer", "set_delta_z"):
        pytagi.manual_seed(3)
        net = Sequential(LSTM(1, 8, 4), LSTM(8, 8, 4), Linear(32, 1))
        net.to_device("cpu")
        net(x)
        assert net.input_delta_z_buffer.delta_mu == [0.0] * 8
        states, delta = net.output_z_buffer, net.input_delta_z_buffer
        found = own_update(y, noise, states.jcb, states.mu_a, states.var_a, 8)
        if kind == "updater":
            OutputUpdater(net.device).update(states, y, noise, delta)
            np.testing.assert_allclose(delta.delta_mu, found[0], rtol=1e-6)
            np.testing.assert_allclose(delta.delta_var, found[1], rtol=1e-6)
        elif kind == "buffer":
            net.input_delta_z_buffer.delta_mu, net.input_delta_z_buffer.delta_var = found
        else:
            net.set_delta_z(*found)
        net.backward()
        net.step()
        net.reset_lstm_states()
        outputs.append(net(x)[0])
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5)
    np.testing.assert_array_equal(outputs[2], outputs[1])
