"""What may come in: empty batches, arrays that torch does not take, rows of the wrong size; and layers out of place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import gridwise.tagi.nn as nn
from gridwise.errors import ArgumentError, UnsupportedError

NETWORKS: dict[str, tuple[Callable[[], list[nn.BaseLayer]], tuple[int, ...]]] = {
    "batch norm": (lambda: [nn.Linear(3, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.Linear(2, 2)], (3,)),
    "images": (
        lambda: [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2, 2), nn.AvgPool2d(2), nn.Linear(2, 2)],
        (1, 6, 6),
    ),
    "sequences": (lambda: [nn.LSTM(1, 4, 5), nn.LSTM(4, 4, 5), nn.Linear(20, 2)], (5, 1)),
    "attention": (lambda: [nn.Linear(3, 4), nn.MultiheadAttention(4, 2), nn.LayerNorm([4]), nn.Linear(8, 2)], (2, 3)),
    "indices": (lambda: [nn.Embedding(5, 2, 3), nn.Linear(6, 2), nn.EvenExp()], (3,)),
}


@pytest.mark.parametrize("observe", ["all", "indices", "heteros"])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_empty_batch_changes_nothing(name: str, observe: str) -> None:
    build, shape = NETWORKS[name]
    net = nn.Sequential(*build())
    net(torch.ones(4, *shape))
    before = {key: value.clone() for key, value in net.state_dict().items()}
    mu, _ = net(torch.zeros(0, *shape))
    assert mu.shape == (0, 2)
    assert net.output_z_buffer.mu_a.shape == (0, 2)
    updater, none = nn.OutputUpdater(), np.zeros(0)
    if observe == "all":
        updater.update(net.output_z_buffer, none, none, net.input_delta_z_buffer)
    elif observe == "indices":
        updater.update_using_indices(net.output_z_buffer, none, none, none, net.input_delta_z_buffer)
    else:
        updater.update_heteros(net.output_z_buffer, none, net.input_delta_z_buffer)
    net.backward()
    net.step()
    for key, value in net.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0, msg=lambda m, k=key: f"{k}: {m}")


def test_arrays_that_torch_does_not_take() -> None:
    net = nn.Sequential(nn.Linear(3, 2)).eval()
    x = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    for odd in (x[::-1], x[:, ::-1], x.astype(">f4"), x[::2]):
        np.testing.assert_array_equal(net(odd)[0], net(odd.astype(np.float32).copy())[0])
    delta = nn.BaseDeltaStates()
    nn.OutputUpdater().update(net.output_z_buffer, np.arange(4.0)[::-1], np.ones(4)[::-1], delta)
    assert delta.size == 4


def test_rows_of_another_size_are_not_regrouped() -> None:
    """Six values a row are not two rows of three."""
    for net, shape in (
        (nn.Sequential(nn.Linear(3, 2)), (4, 6)),
        (nn.Sequential(nn.LSTM(1, 2, 3)), (4, 6)),
        (nn.Sequential(nn.Conv2d(1, 2, 2, in_width=3, in_height=1)), (4, 6)),
        (nn.Sequential(nn.MultiheadAttention(2, 1, seq_len=3)), (4, 12)),
    ):
        for x in (torch.zeros(shape), np.zeros(shape)):
            with pytest.raises(ArgumentError, match=r"values a sample, \d are needed"):
                net(x)


def test_variances_have_the_rows_of_their_means() -> None:
    net, x = nn.Sequential(nn.Linear(3, 2)), torch.zeros(2, 3)
    for flat in (torch.ones(2, 3), torch.ones(6)):
        assert net(x, flat)[1].shape == (2, 2)
    for wrong in (torch.ones(3, 2), torch.ones(()), torch.ones(2, 2)):
        with pytest.raises(ArgumentError, match="6 means of 2 samples"):
            net(x, wrong)


def test_indices_are_whole_numbers_that_the_type_has() -> None:
    net = nn.Sequential(nn.Embedding(300, 2))
    assert net(torch.tensor([[257, 299]]))[0].shape == (1, 2, 2)
    with pytest.raises(ArgumentError, match=r"1\.5 came in for an index"):
        net(torch.tensor([[0.0, 1.5]]))
    with pytest.raises(ArgumentError, match="up to 256 only"):
        net.bfloat16()(torch.tensor([[257]]))


def test_arrays_come_back_from_a_network_in_bfloat16() -> None:
    mu, var = nn.Sequential(nn.Linear(3, 2)).bfloat16()(np.ones((4, 3)))
    assert mu.dtype == var.dtype == np.float32


def test_buffers_have_as_many_values_for_each_sample() -> None:
    with pytest.raises(ArgumentError, match="block_size"):
        nn.BaseDeltaStates(7, 2)


def test_tokens_stay_tokens_in_the_first_layer() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.MultiheadAttention(4, 2), nn.Linear(4, 1))
    assert net(torch.zeros(2, 5, 3))[0].shape == (2, 5, 1)


def test_flat_images_have_the_declared_size_whatever_came_before() -> None:
    net = nn.Sequential(nn.Conv2d(1, 1, 1, in_width=8, in_height=4))
    x = torch.randn(3, 32)
    first = net(x)[0]
    assert net(torch.zeros(5, 1, 2, 2))[0].shape == (5, 1, 2, 2)
    torch.testing.assert_close(net(x)[0], first)


def test_a_layer_stands_in_one_place_and_an_activation_anywhere() -> None:
    linear, relu = nn.Linear(3, 3), nn.ReLU()
    assert len(nn.Sequential(linear, relu, nn.Linear(3, 3), relu).layers) == 4
    with pytest.raises(ArgumentError, match=r"layer 2, Linear\(3,3\), is layer 0 again"):
        nn.Sequential(linear, relu, linear)


def test_settings_are_checked() -> None:
    net = nn.Sequential(nn.LSTM(1, 4, 1), nn.Linear(4, 1))
    for cap in ("often", 0.0, -1.0):
        with pytest.raises(ArgumentError, match="cap"):
            net.set_cap(cap)
    for states in ((np.zeros(4),) * 3, (np.zeros(4), np.zeros(8), np.zeros(4), np.zeros(4)), (np.zeros(3),) * 4):
        with pytest.raises(ArgumentError, match="mu_h, var_h, mu_c, var_c"):
            net.set_lstm_states({0: states})
    with pytest.raises(ArgumentError, match="seq_len"):
        nn.LSTM(1, 4, 0)


def test_a_step_in_one_call_checks_sizes_like_the_updater() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    x = torch.zeros(4, 3)
    for y, noise in ((torch.zeros(4), 0.1), (torch.zeros(4, 2), torch.ones(2)), (torch.zeros(4, 2), torch.ones(4, 1))):
        with pytest.raises(ArgumentError, match="8 are needed"):
            nn.TrainStep(net)(x, y, noise)
    with pytest.raises(ArgumentError, match="as many for each sample"):
        nn.TrainStep(net, "indices")(x, torch.zeros(3), 0.1, torch.ones(3))
    with pytest.raises(ArgumentError, match="odd number of units"):
        nn.TrainStep(nn.Sequential(nn.Linear(3, 3)), "heteros")(x, torch.zeros(4, 2))


@pytest.mark.parametrize("index", [[0, 1], [1, 3]])
def test_a_step_in_one_call_refuses_units_that_are_not_there(index: list[int]) -> None:
    step = nn.TrainStep(nn.Sequential(nn.Linear(3, 2)), "indices")
    with pytest.raises(ArgumentError, match=r"2 indices, from \d to \d, came in[^\n]*\n  fix: .*from 1 to 2"):
        step(torch.ones(2, 3), torch.ones(2), 0.1, index)


def test_a_step_in_one_call_updates_the_input_if_asked() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    net.input_state_update = True
    nn.TrainStep(net)(torch.ones(4, 3), torch.zeros(4, 2), 0.1)
    assert net.get_input_states()[0].shape == (12,)
    with pytest.raises(UnsupportedError, match="input_state_update"):
        nn.TrainStep(net, compile=True)(torch.ones(4, 3), torch.zeros(4, 2), 0.1)


def test_a_window_of_a_maximum_has_at_least_one_value() -> None:
    with pytest.raises(ArgumentError, match=r"`padding` \(=\(2, 2\)\)[^\n]*`kernel_size` \(=\(2, 2\)\)[^\n]*\n  fix:"):
        nn.MaxPool2d(2, 2, 2, 1)
    mu, var = nn.Sequential(nn.MaxPool2d(3, 1, 2, 1))(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
    assert torch.equal(mu, torch.ones(1, 1, 4, 4))
    assert torch.equal(var, torch.ones(1, 1, 4, 4))


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.AvgPool2d(2, padding_type=3),
        lambda: nn.AvgPool2d(0),
        lambda: nn.MaxPool2d(2, 0),
        lambda: nn.AvgPool2d(2, 1, (0, -1), 1),
        lambda: nn.Conv2d(1, 1, 3, padding=-1),
        lambda: nn.Conv2d(1, 1, 3, stride=0),
        lambda: nn.Conv2d(1, 1, 3, dilation=0),
    ],
)
def test_windows_have_a_size_and_a_known_padding(build: Callable[[], nn.BaseLayer]) -> None:
    with pytest.raises(ArgumentError, match=r"Pool2d|Conv2d"):
        build()


def test_negative_indices_are_padding_or_refused() -> None:
    net = nn.Sequential(nn.Embedding(5, 2, padding_idx=-3))
    assert not net(torch.tensor([[-3.0]]))[0].any()
    with pytest.raises(ArgumentError, match="indices from -1 to 4 came in"):
        net(torch.tensor([[-1.0, -3.0, 4.0]]))
    outside = nn.Sequential(nn.Embedding(5, 2, padding_idx=9))
    assert not outside(torch.tensor([[9.0]]))[0].any()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("layer", [nn.BatchNorm2d(1), nn.LayerNorm([1, 256, 512]), nn.RMSNorm([512 * 256])])
def test_norms_in_half_precision_sum_more_than_the_type_holds(layer: nn.BaseLayer, shared: bool) -> None:
    layer.all_sum = (lambda t: t) if shared else None  # type: ignore[assignment]
    x = 300.0 + 100.0 * torch.randn(1, 1, 256, 512)
    x = x.flatten(1) if isinstance(layer, nn.RMSNorm) else x
    want = layer.float().forward(nn.Gaussian(x, torch.ones_like(x)))
    got = layer.half().forward(nn.Gaussian(x.half(), torch.ones_like(x).half()))
    assert got.mu.dtype == got.variance().dtype == torch.float16
    torch.testing.assert_close(got.mu.float(), want.mu, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(got.variance().float(), want.variance(), rtol=1e-2, atol=1e-2)


def test_distant_tokens_have_angles_of_their_own_in_bfloat16() -> None:
    layer = nn.MultiheadAttention(4, 1)
    for low, exact in zip(
        layer._angles(torch.zeros(1, 300).bfloat16()), layer._angles(torch.zeros(1, 300)), strict=True
    ):
        torch.testing.assert_close(low, exact.bfloat16())
