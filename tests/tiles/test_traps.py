"""What makes tiles wrong if it is forgotten: each trap is a model, beside itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.errors import PartitionError, UnsupportedError

from .equality import check, same

X = torch.randn(2, 4, 23, 26, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Of(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function: Callable[[Tensor], Any], channels: int = 4, last: bool = True) -> None:
        super().__init__()
        self.first, self.function = nn.Conv2d(4, 4, 3, padding=1), function
        self.last = nn.Conv2d(channels, 2, 3, padding=1) if last else nn.Identity()

    def forward(self, x: Tensor) -> Any:
        return self.last(self.function(self.first(x)))


TRAPS: dict[str, Of] = {
    "ceil_mode": Of(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True)),
    "count_include_pad": Of(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
    "divisor_override": Of(lambda x: F.avg_pool2d(x, 3, 2, divisor_override=5)),
    "same, even kernel": Of(nn.Conv2d(4, 4, 4, padding="same")),
    "circular": Of(nn.Conv2d(4, 4, 3, padding=2, padding_mode="circular")),
    "reflect": Of(nn.Conv2d(4, 4, 7, padding=3, padding_mode="reflect")),
    "replicate": Of(nn.Conv2d(4, 4, 5, padding=2, padding_mode="replicate")),
    "scale_factor": Of(lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear")),
    "align_corners": Of(lambda x: F.interpolate(x, (40, 31), mode="bicubic", align_corners=True)),
    "nearest": Of(lambda x: F.interpolate(x, scale_factor=2.5, mode="nearest")),
    "transposed": Of(nn.ConvTranspose2d(4, 4, 3, stride=3, padding=2, output_padding=1)),
    "dilated": Of(nn.Conv2d(4, 4, 3, dilation=9, padding=9)),
    "grouped": Of(nn.Conv2d(4, 8, 3, groups=2, padding=1), channels=8),
    "pooled to one": Of(lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True))),
    "adaptive": Of(lambda x: F.adaptive_avg_pool2d(x, (5, 7))),
    "adaptive max": Of(lambda x: F.adaptive_max_pool2d(x, 1), last=False),
    "merged dims": Of(lambda x: x.flatten(2).softmax(-1).view(x.shape)),
    "pixel_shuffle": Of(lambda x: F.pixel_shuffle(x, 2), channels=1),
    "in place": Of(lambda x: F.silu((x * 1).add_(x))),
    "written through a view": Of(lambda x: _halved(x * 1)),
    "windows": Of(lambda x: F.fold(F.unfold(x, 3, padding=1), (23, 26), 3, padding=1)),
    "rolled": Of(lambda x: torch.roll(x, (5, -3), (2, 3))),
    "flipped": Of(lambda x: x.flip(3)),
    "transformed": Of(lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 0.5, s=x.shape[2:])),
    "attended": Of(lambda x: _attended(x)),
    "sorted": Of(lambda x: x.sort(-1).values),
    "sorted, with places": Of(lambda x: _sorted_with_places(x * 2)),
    "places only": Of(lambda x: x.flatten(2).sort(1).indices.view(x.shape) * x),
    "several outputs": Of(lambda x: (x.relu(), F.avg_pool2d(x, 2), x.mean()), last=False),
    "not a tensor": Of(lambda x: {"y": [x.relu()], "size": x.shape[2]}, last=False),
    "variance": Of(lambda x: x / (x.var((2, 3), keepdim=True) + 1)),
    "linear": Of(lambda x: F.linear(x.permute(0, 2, 3, 1), torch.ones(3, 4).double()), last=False),
    "layer norm": Of(lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (4,)).permute(0, 3, 1, 2)),
    "layer norm of everything": Of(lambda x: F.layer_norm(x, x.shape[1:])),
    "checked under no_grad": Of(lambda x: x * x.detach().tanh()),
    "parts under no_grad": Of(lambda x: x * _parts_without_gradient(x)),
    "a similarity": Of(lambda x: F.cosine_similarity(x, x.flip(1), dim=-1).unsqueeze(-1) * x),
    "an inverse": Of(lambda x: x @ torch.linalg.inv(torch.eye(26).double() + x[:1, :1, :1].transpose(2, 3) * 0.01)),
    "one row": Of(lambda x: x[:, :, 7:8].expand_as(x) + x),
}


def _parts_without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        a, b = x.split(2, 1)
        rows = x.flatten(1)[:, :2].sum()
    return torch.cat([b, a], 1) + rows


def _halved(x: Tensor) -> Tensor:
    x[:, :2, 3:-4].mul_(0.5)
    return x + x.transpose(0, 1)[:1].sum()


def _sorted_with_places(x: Tensor) -> Tensor:
    """One result is needed with a halo, the other without."""
    values, places = x.sort(1)
    return F.avg_pool2d(values, 3, 1, 1) + places


def _attended(x: Tensor) -> Tensor:
    q = x.flatten(2).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q * 2, q - 1).transpose(1, 2).reshape(x.shape)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", TRAPS)
def test_traps(name: str) -> None:
    check(TRAPS[name].double(), X)


@pytest.mark.parametrize("memory", ["60KiB", "200KiB"])
def test_a_limit_gives_the_same_as_sizes_of_tiles(memory: str) -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 4, 3, stride=2))
    check(model.double(), X, memory=memory)


def test_what_norms_normalise_is_computed_once_however_small_it_is() -> None:
    def flops_of(layers: int) -> float:
        parts = [part for _ in range(layers) for part in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))]
        return sum(stage.flops for stage in gridwise.tiled(nn.Sequential(*parts), tile=8).plan((2, 4, 8, 8)).stages)

    assert flops_of(6) < 2.2 * flops_of(3)


def test_a_long_residual_chain_of_small_values_is_computed_once() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = nn.GroupNorm(2, 16), nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.conv(self.norm(x.mT).mT.relu())

    def flops_of(layers: int) -> float:
        model = nn.Sequential(*[Residual() for _ in range(layers)])
        return sum(stage.flops for stage in gridwise.tiled(model, tile=8).plan((2, 16, 8, 8)).stages)

    assert flops_of(16) < 2.5 * flops_of(8)


def test_under_a_small_limit_small_values_are_stored() -> None:
    layers = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(6)]
    x = torch.randn(1, 8, 24, 24).double()
    big = check(nn.Sequential(*layers).double(), x, memory="200KiB", store=None)
    assert big.plan(tuple(x.shape), backward=True).peak < 200 * 1024


def test_under_a_small_limit_what_is_small_is_stored_if_it_is_made_of_much() -> None:
    def correlated(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y.mT).square().sum()

    x, y = torch.randn(2, 1, 16, 4096, generator=torch.Generator().manual_seed(0)).double()
    big = check(correlated, x, y, memory=x.nbytes)
    assert big.plan(x, y, backward=True).tiles > 2


def test_a_tile_smaller_than_its_halo() -> None:
    check(nn.Sequential(nn.Conv2d(4, 4, 11, padding=5), nn.Conv2d(4, 2, 9)).double(), X, tile=2)


def test_dropout_is_the_same_in_backward_and_does_not_depend_on_the_tiles() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Dropout(0.5), nn.Conv2d(4, 4, 3)).double()
    results = []
    for tile in (5, 9, 100):
        torch.manual_seed(3)
        x = X.clone().requires_grad_()
        y = gridwise.tiled(model, tile=tile)(x)
        y.sum().backward()
        results.append((y, x.grad))
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    torch.manual_seed(3)
    results.append((gridwise.distribute(model, P)(X), results[0][1]))
    for y, g in results[1:]:
        same(y, results[0][0], 1e-12)
        same(g, results[0][1], 1e-12)


def test_a_loss_by_tiles() -> None:
    model, target = TRAPS["in place"].double(), torch.randint(2, (2, 23, 26))

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    model.zero_grad()
    loss = gridwise.tiled(loss_of, tile=6)(X, target)
    loss.backward()
    mine = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    expected = loss_of(X, target)
    expected.backward()
    same(loss, expected, 1e-12)
    for p, g in zip(model.parameters(), mine, strict=True):
        same(g, p.grad, 1e-9)


def test_methods_by_tiles() -> None:
    class Coder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)

        def decode(self, z: Tensor) -> Tensor:
            return self.up(z)

    model = Coder().double()
    same(gridwise.tiled(model, tile=7, methods=("decode",)).decode(X), model.decode(X), 1e-12)
    with pytest.raises(PartitionError, match="has no method 'encode'"):
        gridwise.tiled(model, methods=("encode",))


def test_files_are_read_and_results_written_by_tiles(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.InstanceNorm3d(2)).double()
    volume = np.random.default_rng(0).normal(size=(9, 20, 21))
    np.save(tmp_path / "volume.npy", volume)
    source = gridwise.data.open_array(tmp_path / "volume.npy")
    out = np.zeros((2, 9, 20, 21))
    with torch.no_grad():
        gridwise.tiled(model, tile=(5, 8, 8))(source, out=out)
        same(torch.from_numpy(out), model(torch.from_numpy(volume)[None]), 1e-10)


def test_what_lies_between_stages_may_lie_on_a_disk(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(4, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 2, 3)).double()
    check(model, torch.randn(1, 4, 64, 64).double(), memory="3MiB", store=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_change_of_the_input_between_forward_and_backward_is_torchs_error() -> None:
    x = X.clone().requires_grad_()
    held = x * 1
    y = gridwise.tiled(nn.Conv2d(4, 2, 3).double(), tile=6)(held)
    held.data  # noqa: B018
    with torch.no_grad():
        held.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_an_input_that_is_written_to_is_refused() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(2) + 1

    with pytest.raises(UnsupportedError, match="input 0 is changed in place"):
        gridwise.tiled(Writes(), tile=5)(X.clone())


def test_autocast_and_inference_mode() -> None:
    model, x = nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 3)), X.float()
    big = gridwise.tiled(model, tile=6)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        y, z = big(x), model(x)
    assert y.dtype == z.dtype == torch.bfloat16
    same(y.float(), z.float(), 3e-2)


def test_a_model_may_change_between_calls() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Dropout(0.5), nn.BatchNorm2d(4)).double()
    big = gridwise.tiled(model, tile=6)
    big(X)
    model.eval()
    same(big(X), model(X), 1e-12)
    with torch.no_grad():
        model[0].weight.mul_(2)
    same(big(X), model(X), 1e-12)
    model[2] = nn.Identity()
    same(big(X), model(X), 1e-12)


def test_an_error_in_the_middle_names_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    big = gridwise.tiled(nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)).double(), tile=6)

    class Lies:
        shape, dtype = (2, 4, 23, 26), np.dtype("float64")

        def __getitem__(self, slices: Any) -> Any:
            return np.zeros((1, 1))

    with pytest.raises(gridwise.errors.DataError):
        big(gridwise.data.sources.as_source(Lies()))


def _without_gradient(x: Tensor) -> Tensor:
    y = x * 3
    with torch.no_grad():
        y[0] = 2
    return y * 1


def _detached(x: Tensor) -> Tensor:
    y = x * 3
    y.detach().mul_(2)
    return y * 1


@pytest.mark.parametrize("function", [_without_gradient, _detached])
def test_writes_past_a_gradient_are_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedError, match="past its gradient"):
        gridwise.tiled(function, tile=8)(X.clone().requires_grad_())
    same(gridwise.tiled(function, tile=8)(X), function(X), 0.0)


def test_what_is_overwritten_still_needs_a_gradient() -> None:
    x = X.clone().requires_grad_()
    y = gridwise.tiled(lambda x: x.clone().fill_(2.0), tile=8)(x)
    assert y.requires_grad
    y.sum().backward()
    assert x.grad is None or not x.grad.any()
