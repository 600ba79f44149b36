"""MONAI's networks through `ExactInferer` give what they give without it."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest
import torch

import gridwise

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]


def adapter():
    return importlib.import_module("gridwise.integrations.monai")


def unet():
    from monai.networks.nets import UNet

    torch.manual_seed(0)
    return UNet(3, 1, 2, (4, 8, 16), (2, 2), num_res_units=1).double().eval()


def dynunet():
    from monai.networks.nets import DynUNet

    torch.manual_seed(0)
    options = {"filters": (4, 8, 16), "deep_supervision": False, "res_block": True}
    return DynUNet(3, 1, 2, [3] * 3, [1, 2, 2], [2, 2], **options).double().eval()


def volume(size=(32, 24, 28)):
    return torch.rand(1, 1, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_examples():
    assert doctest.testmod(adapter(), extraglobs={"torch": torch}).failed == 0


@pytest.mark.parametrize("network", [unet, dynunet])
@pytest.mark.parametrize("limit", [{"memory": "1MiB"}, {"tile": (12, 12, 12)}])
def test_networks_equal_the_plain_call(network, limit):
    from monai.inferers import Inferer

    model, inferer = network(), adapter().ExactInferer(**limit)
    assert isinstance(inferer, Inferer)
    with torch.no_grad():
        for size in ((32, 24, 28), (16, 32, 20)):
            torch.testing.assert_close(inferer(volume(size), model), model(volume(size)))


def test_sliding_windows_do_not():
    """What it is for: the same call, and other numbers."""
    from monai.inferers import SlidingWindowInferer

    model = unet()
    with torch.no_grad():
        windows = SlidingWindowInferer((16, 16, 16), overlap=0.5, mode="gaussian")(volume(), model)
        assert (windows - model(volume())).abs().max() > 0.01


def test_what_a_metatensor_knows_goes_with_it():
    from monai.data import MetaTensor

    affine = 2 * torch.eye(4, dtype=torch.float64)
    y = adapter().ExactInferer(tile=16)(MetaTensor(volume(), affine=affine), lambda x: {"a": 2 * x, "b": 3})
    assert isinstance(y["a"], MetaTensor)
    torch.testing.assert_close(y["a"].affine, affine)
    torch.testing.assert_close(y["a"].as_tensor(), 2 * volume())
    assert y["b"] == 3


def test_an_ensemble_and_further_arguments():
    inferer, models = adapter().ExactInferer(tile=16), [unet(), dynunet()]
    with torch.no_grad():
        for _ in range(2):
            for model in models:
                torch.testing.assert_close(inferer(volume(), model), model(volume()))
        scaled = inferer(volume(), lambda x, by, *, plus: by * x + plus, torch.full((1,), 2.0), plus=1.0)
    torch.testing.assert_close(scaled, 2 * volume() + 1)
    assert len(inferer._kept) == 3


def test_a_file_is_an_input_too(tmp_path):
    np.save(tmp_path / "volume.npy", volume().numpy())
    model = unet()
    with torch.no_grad():
        torch.testing.assert_close(adapter().ExactInferer(tile=16)(tmp_path / "volume.npy", model), model(volume()))


def test_gradients_pass():
    model, x, y = unet(), volume().requires_grad_(), volume().requires_grad_()
    adapter().ExactInferer(tile=16)(x, model).square().sum().backward()
    mine = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(mine, [p.grad for p in model.parameters()])


def on_a_grid():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1, 1])
    model = unet()
    with torch.no_grad():
        return float((adapter().ExactInferer(P_x=P_x)(volume(), model) - model(volume())).abs().max())


def test_on_a_grid_every_worker_gets_the_whole():
    assert max(gridwise.launch(on_a_grid, workers=2)) < 1e-10
