"""Autoencoders of diffusers by `exact_tiling` give what they give without it."""

from __future__ import annotations

import doctest
import importlib
from types import SimpleNamespace

import pytest
import torch

import gridwise
from gridwise.errors import ArgumentError

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]


def adapter():
    return importlib.import_module("gridwise.integrations.diffusers")


def pictures():
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    return AutoencoderKL(**blocks, block_out_channels=(8, 16), norm_num_groups=4).double().eval()


def videos():
    from diffusers import AutoencoderKLWan

    torch.manual_seed(0)
    options = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2, 2], "num_res_blocks": 1, "attn_scales": []}
    scales = {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
    return AutoencoderKLWan(**options, **scales, temperal_downsample=[False, True]).double().eval()


def random(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


KINDS = {"pictures": (pictures, (1, 3, 40, 56), (1, 4, 20, 28)), "videos": (videos, (1, 3, 5, 24, 32), (1, 4, 2, 6, 8))}


def test_examples():
    assert doctest.testmod(adapter(), extraglobs={"torch": torch}).failed == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [{"memory": "8MiB"}, {"tile": (9, 9)}])
def test_both_directions_equal_the_plain_calls(kind, limit):
    make, sample, latent = KINDS[kind]
    vae, x, z = make(), random(*sample), random(*latent)
    with torch.no_grad():
        code, picture = vae.encode(x).latent_dist, vae.decode(z).sample
        with adapter().exact_tiling(vae, **limit):
            mine = vae.encode(x).latent_dist
            torch.testing.assert_close(mine.parameters, code.parameters)
            torch.testing.assert_close(mine.mode(), code.mode())
            torch.testing.assert_close(vae.decode(z).sample, picture)
            torch.testing.assert_close(vae.decode(z, return_dict=False)[0], picture)


def test_a_pipeline_decodes_exactly_until_it_is_undone():
    vae, z = pictures(), random(1, 4, 40, 40)
    pipe, generator = SimpleNamespace(vae=vae), torch.Generator().manual_seed(0)
    with torch.no_grad():
        whole = vae.decode(z).sample
        vae.enable_tiling()
        vae.tile_latent_min_size, vae.tile_sample_min_size = 16, 32
        seams = vae.decode(z).sample
        assert (seams - whole).abs().max() > 0.01
        exact = adapter().exact_tiling(pipe, tile=(16, 16))
        torch.testing.assert_close(pipe.vae.decode(z, return_dict=False, generator=generator)[0], whole)
        again = adapter().exact_tiling(pipe, tile=(20, 20))
        exact.undo()  # of two, the later one stays
        vae.disable_tiling()
        torch.testing.assert_close(vae.decode(z).sample, whole)
        assert "decode" in vars(vae)
        again.undo()
        assert "decode" not in vars(vae)
    assert set(vae.state_dict()) == set(pictures().state_dict())


def test_its_own_tiling_comes_back():
    vae = pictures()
    vae.enable_tiling()
    with adapter().exact_tiling(vae, tile=16) as same:
        assert same is vae
        assert not vae.use_tiling
    assert vae.use_tiling


def test_an_offloaded_autoencoder_is_moved_first():
    vae, moved = pictures(), []
    vae._hf_hook = SimpleNamespace(pre_forward=moved.append)
    with torch.no_grad(), adapter().exact_tiling(vae, tile=16):
        vae.decode(random(1, 4, 20, 20))
    assert moved[0] is vae


def test_what_has_no_autoencoder_is_refused():
    with pytest.raises(ArgumentError, match=r"has no `vae`.*\n  fix: give a pipeline"):
        adapter().exact_tiling(SimpleNamespace(), memory="1GiB")


def on_a_grid():
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    vae, x, z = pictures(), random(1, 3, 40, 56), random(1, 4, 20, 28)
    with torch.no_grad():
        whole = vae.encode(x).latent_dist.parameters, vae.decode(z).sample
        with adapter().exact_tiling(vae, P_x=P_x):
            mine = vae.encode(x).latent_dist.parameters, vae.decode(z).sample
    return max(float((a - b).abs().max()) for a, b in zip(mine, whole, strict=True))


def test_on_a_grid_every_worker_gets_the_whole():
    assert max(gridwise.launch(on_a_grid, workers=2)) < 1e-10
