"""Longer scripts of pytagi's users: autoencoders, learnt noise, files of trained networks, several workers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import gridwise
import gridwise_compat
from gridwise.testing import workers

pytestmark = pytest.mark.filterwarnings("ignore::gridwise_compat.CompatibilityNote")


@pytest.mark.usefixtures("old_names")
@pytest.mark.parametrize("count", [-1, 12])
@pytest.mark.parametrize("bottleneck", ["Linear", "Tanh", "MixtureReLU"])
def test_an_autoencoder_of_two_networks_trains_as_one(bottleneck: str, count: int) -> None:
    """Encoder and decoder of the old example, which sets no `input_state_update`: the same step as one network's."""
    import pytagi
    from pytagi import nn

    pytagi.manual_seed(3)
    middle = [] if bottleneck == "Linear" else [getattr(nn, bottleneck)()]
    encoder = nn.Sequential(nn.Linear(5, 6), nn.MixtureReLU(), nn.Linear(6, 3), *middle)
    decoder = nn.Sequential(nn.Linear(3, 6), nn.MixtureReLU(), nn.Linear(6, 5))
    whole = nn.Sequential(
        *(nn.Linear(5, 6), nn.MixtureReLU(), nn.Linear(6, 3)),
        *([] if bottleneck == "Linear" else [getattr(nn, bottleneck)()]),
        *(nn.Linear(3, 6), nn.MixtureReLU(), nn.Linear(6, 5)),
    )
    for mine, theirs in zip(_with_weights(whole), [*_with_weights(encoder), *_with_weights(decoder)], strict=True):
        for name in ("mu_w", "var_w", "mu_b", "var_b"):
            setattr(mine, name, getattr(theirs, name))
    out_updater = nn.OutputUpdater(decoder.device)
    random = np.random.default_rng(0)
    var_y = np.full((4 * 5,), 0.3**2, dtype=np.float32)
    for _ in range(3):
        x = random.normal(size=20).astype(np.float32)
        encoder(x)
        decoder(encoder.output_z_buffer)
        out_updater.update(
            output_states=decoder.output_z_buffer,
            mu_obs=x,
            var_obs=var_y,
            delta_states=decoder.input_delta_z_buffer,
        )
        decoder.backward()
        decoder.step()
        encoder.input_delta_z_buffer.copy_from(decoder.output_delta_z_buffer, count)
        encoder.backward()
        encoder.step()
        whole(x)
        out_updater.update(whole.output_z_buffer, x, var_y, whole.input_delta_z_buffer)
        whole.backward()
        whole.step()
    for mine, theirs in zip(_with_weights(whole), [*_with_weights(encoder), *_with_weights(decoder)], strict=True):
        np.testing.assert_allclose(theirs.mu_w, mine.mu_w, rtol=1e-6)
        np.testing.assert_allclose(theirs.var_b, mine.var_b, rtol=1e-6)


def _with_weights(net) -> list:
    return [layer for layer in net.layers if layer.num_weights]


@pytest.mark.usefixtures("old_names")
def test_noise_that_a_layer_learns_is_that_of_the_heteroscedastic_update() -> None:
    """AGVI without overfitting, observed exactly, is EvenExp with `update_heteros`: one formula in two places."""
    from pytagi.nn import AGVI, EvenExp, Exp, Linear, MixtureReLU, OutputUpdater, Sequential, SplitActivation

    torch.manual_seed(0)
    as_layer = Sequential(Linear(1, 8), MixtureReLU(), Linear(8, 4), AGVI(Exp(), overfit_mu=False))
    as_update = Sequential(Linear(1, 8), MixtureReLU(), Linear(8, 4), EvenExp())
    as_update.load_state_dict(as_layer.state_dict())
    as_layer.set_compat(None), as_update.set_compat(None)
    updater = OutputUpdater("cpu")
    random = np.random.default_rng(0)
    for _ in range(3):
        x, y = random.normal(size=6).astype(np.float32), random.normal(size=12).astype(np.float32)
        mean, var = as_layer(x)
        both, spread = as_update(x)
        np.testing.assert_allclose(mean, both[0::2], rtol=1e-6)
        np.testing.assert_allclose(var, spread[0::2] + both[1::2], rtol=1e-5)
        updater.update(as_layer.output_z_buffer, y, np.zeros(12, np.float32), as_layer.input_delta_z_buffer)
        updater.update_heteros(as_update.output_z_buffer, y, as_update.input_delta_z_buffer)
        for net in (as_layer, as_update):
            net.backward()
            net.step()
    for mine, right in zip(_with_weights(as_layer), _with_weights(as_update), strict=True):
        np.testing.assert_allclose(mine.mu_w, right.mu_w, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(mine.var_w, right.var_w, rtol=1e-4, atol=1e-7)
    split = Sequential(Linear(1, 8), MixtureReLU(), Linear(8, 4), SplitActivation(Exp()))
    split.set_compat(None)
    split.load_state_dict(as_update.state_dict())
    for ours, right in zip(split(x), as_update(x), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-6)


def test_noise_that_a_layer_learns_by_its_formulas() -> None:
    """One pair of units, with numbers written out from the layer's definition."""
    from gridwise.tagi.nn import AGVI, Exp, Gaussian, Innovation

    layer = AGVI(Exp(scale=0.5, shift=-1.0))
    m, v = torch.tensor([[0.3, -0.4]], dtype=torch.float64), torch.tensor([[0.2, 0.5]], dtype=torch.float64)
    out = layer(Gaussian(m, v))
    mean, spread = 0.5 * -0.4 - 1.0, 0.25 * 0.5
    a = np.exp(mean + spread / 2)
    q, J = np.exp(2 * mean + spread) * (np.exp(spread) - 1), 0.5 * a
    np.testing.assert_allclose(out.var, [[0.2 + a]])
    delta, Delta = 0.7, -0.9
    back = layer.backward(Innovation(torch.tensor([[delta]]).double(), torch.tensor([[Delta]]).double()))
    mu_V, var_V = a * delta, a + a * Delta * a
    mu_V2, var_V2 = mu_V**2 + var_V, 2 * var_V**2 + 4 * var_V * mu_V**2
    k = q / (3 * q + 2 * a**2)
    odd = (J / q) * k * (mu_V2 - a), (J / q) ** 2 * k**2 * (var_V2 - (3 * q + 2 * a**2))
    np.testing.assert_allclose(back.mu, [[delta * (0.2 + a) / 0.2, odd[0]]])
    np.testing.assert_allclose(back.var, [[Delta, odd[1]]])


@pytest.mark.usefixtures("old_names")
@pytest.mark.parametrize("samples", [0, 1, 16])
def test_files_of_a_trained_layer_norm_load(tmp_path: Path, samples: int) -> None:
    """cuTAGI writes a mean and a variance of each sample of the last batch after the parameters of a LayerNorm."""
    from pytagi.nn import LayerNorm, Linear, ReLU, Sequential

    random = np.random.default_rng(1)
    file, wanted = b"", []
    for name, sizes in (("LayerNorm()", (4, 4, 4, 4)), ("Linear(4,2)", (8, 8, 2, 2)), ("LayerNorm()", (2, 2, 2, 2))):
        values = [random.uniform(0.1, 1, size).astype("<f4") for size in sizes]
        wanted += [value.tolist() for value in values]
        file += struct.pack("<Q", len(name)) + name.encode() + b"".join(value.tobytes() for value in values)
        if name == "LayerNorm()":
            file += random.normal(size=samples).astype("<f4").tobytes()
            file += random.uniform(0.1, 1, samples).astype("<f4").tobytes()
    (tmp_path / "net.bin").write_bytes(file)
    net = Sequential(LayerNorm([4]), Linear(4, 2), ReLU(), LayerNorm([2]))
    net.load(str(tmp_path / "net.bin"))
    assert [part for layer in net.state_dict().values() for part in layer] == wanted
    (tmp_path / "net.bin").write_bytes(file + struct.pack("<Q", 11) + b"Linear(2,1)" + b"\0" * 24)
    with pytest.raises(ValueError, match="left over"):
        net.load(str(tmp_path / "net.bin"))
    (tmp_path / "net.bin").write_bytes(file[:-2])
    with pytest.raises(ValueError, match=r"left over|ends inside"):
        net.load(str(tmp_path / "net.bin"))


@pytest.mark.usefixtures("old_names")
def test_attention_takes_both_orders_of_arguments() -> None:
    from pytagi.nn import MultiheadAttention

    released = MultiheadAttention(8, 2, 1, False, 0.5)
    assert (released.qkv.mu_b, released.seq_len, released.causal) == (None, 0, True)
    newest = MultiheadAttention(8, 2, None, 5, False, pos_emb="", use_causal_mask=False, max_seq_len=64)
    assert (newest.qkv.mu_b, newest.seq_len, newest.causal, newest.use_rope) == (None, 5, False, False)
    with pytest.raises(NotImplementedError, match="pos_emb"):
        MultiheadAttention(8, 2, pos_emb="sinusoidal")
    with pytest.raises(TypeError, match="dropout"):
        MultiheadAttention(8, 2, dropout=0.1)


@workers(2)
def test_a_network_on_several_workers() -> None:
    """As `mpirun -n 2` starts the old example: NCCL is asked for, seeds differ, a batch each, sums or averages."""
    gridwise_compat.install()
    import pytagi
    from pytagi.nn import BatchNorm2d, Conv2d, DDPConfig, DDPSequential, Linear, OutputUpdater, ReLU, Sequential

    rank, world_size = gridwise.world().rank, gridwise.world().size

    def network() -> Sequential:
        return Sequential(Conv2d(1, 2, 3, in_width=4, in_height=4), ReLU(), BatchNorm2d(2), Linear(8, 1))

    images = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    targets = images.mean(1)
    pytagi.manual_seed(42 + rank)
    config = DDPConfig(device_ids=[i % 2 for i in range(world_size)], backend="nccl", rank=rank, world_size=world_size)
    ddp_model = DDPSequential(network(), config, average=False)
    alone = network()
    alone.load_state_dict(ddp_model.state_dict())
    updater = OutputUpdater("cpu")
    var_y = np.full((8,), 0.1, dtype=np.float32)
    ddp_model.train()
    for _ in range(2):
        mine = slice(4 * rank, 4 * rank + 4)
        m_pred, v_pred = ddp_model(images[mine].flatten())
        updater.update(ddp_model.output_z_buffer, targets[mine], var_y, ddp_model.input_delta_z_buffer)
        ddp_model.backward()
        ddp_model.step()
        right, _ = alone(images.flatten())
        updater.update(alone.output_z_buffer, targets, var_y, alone.input_delta_z_buffer)
        alone.backward()
        alone.step()
        np.testing.assert_allclose(m_pred, right[mine], rtol=1e-4, atol=1e-5)
        assert m_pred.shape == v_pred.shape == (4,)
    for name, parts in alone.state_dict().items():
        for mine, right in zip(ddp_model.state_dict()[name], parts, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-6)
    ddp_model.eval()
    ddp_model.barrier()
    np.testing.assert_allclose(ddp_model.get_outputs()[0], m_pred)
