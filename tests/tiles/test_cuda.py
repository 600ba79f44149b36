"""Tiles on a CUDA device: the model's own numbers, and no more of the allocator's memory than the limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gridwise

from .equality import cotangent, same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


@pytest.fixture(autouse=True)
def _the_same_numbers() -> Iterator[None]:
    """Kernels that do not depend on the shape of a tile more than rounding does."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


class Decoder(nn.Module):
    """Group norms, an attention over all places, and two doublings of the size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, 16) for _ in range(3))
        self.inner = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.qkv = nn.Conv2d(16, 48, 1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.first(z)
        q, k, v = (t.flatten(2).mT.unsqueeze(1) for t in self.qkv(self.norms[0](x)).chunk(3, 1))
        x = x + F.scaled_dot_product_attention(q, k, v).squeeze(1).mT.reshape(x.shape)
        for norm, conv in zip(self.norms[1:], self.inner, strict=True):
            x = conv(F.interpolate(F.silu(norm(x)), scale_factor=2.0))
        return self.last(x)


def volume_net() -> nn.Module:
    """Instance norms, strides, a transposed convolution."""
    return nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8), nn.LeakyReLU(),
        nn.Conv3d(8, 16, 3, stride=2, padding=1), nn.InstanceNorm3d(16), nn.SiLU(),
        nn.ConvTranspose3d(16, 8, 2, stride=2), nn.Conv3d(8, 2, 3, padding=1, padding_mode="reflect"),
    )  # fmt: skip


def batch_norms() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=2, padding=3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 5),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "decoder": (Decoder, (1, 4, 40, 44)),
    "volume": (volume_net, (1, 1, 32, 36, 40)),
    "batch norms": (batch_norms, (2, 3, 96, 90)),
}


@pytest.mark.parametrize("home", ["cuda", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_the_numbers_of_the_model_forward_and_backward(name: str, home: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().double()
    x = torch.randn(shape, dtype=torch.float64)
    twin, whole = make().double(), x.clone().requires_grad_()
    twin.load_state_dict(model.state_dict())
    expected = twin(whole)
    expected.backward(cotangent(expected))
    big = gridwise.tiled(model.cuda(), tile=(14,) * (len(shape) - 2))
    mine = x.to(home).requires_grad_()
    y = big(mine)
    assert y.device.type == home
    y.backward(cotangent(y).to(home))
    assert mine.grad is not None
    same(y.cpu(), expected, 1e-9)
    same(mine.grad.cpu(), whole.grad, 1e-9)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert p.grad is not None
        same(p.grad.cpu(), q.grad, 1e-9)
    for p, q in zip(model.buffers(), twin.buffers(), strict=True):
        same(p.cpu(), q, 1e-9)


@pytest.mark.parametrize("home", ["cuda", "cpu"])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", ["decoder", "volume"])
def test_the_allocators_peak_is_within_the_limit(name: str, backward: bool, home: str) -> None:
    make, shape = MODELS[name]
    larger = (*shape[:2], *(3 * n for n in shape[2:]))
    torch.manual_seed(0)
    model, x = make().cuda(), torch.randn(larger, device="cuda")
    plain = grown_by(lambda: model(x.requires_grad_(backward)).sum().backward() if backward else model(x), backward)
    model.zero_grad()
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if backward else None
    limit = plain // 5
    big, given = gridwise.tiled(model, memory=limit), x.detach().to(home)
    assert big.plan(larger, backward=backward).peak <= limit
    own = given.nbytes if backward and home == "cuda" else 0  # the gradient of the input, and the result
    results: list[Tensor] = []

    def call() -> None:
        y = big(given.requires_grad_(backward))
        if backward:
            y.backward(torch.ones((), device=home).expand(y.shape))
        results.append(y.detach())

    call()
    results.clear()
    given.grad = None
    grown = grown_by(call, backward)
    own += results[0].nbytes if home == "cuda" else 0
    assert grown - own <= limit, f"{grown - own:,} of {limit:,}; plain {plain:,}"


def grown_by(call: Callable[[], object], backward: bool) -> int:
    """By how much the allocator's peak is above what it holds before."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.set_grad_enabled(backward):
        call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def test_many_calls_in_a_row_do_not_overtake_their_copies() -> None:
    """Copies to and from the host have streams of their own: every number is there when it is read."""
    model = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.InstanceNorm2d(8), nn.Conv2d(8, 1, 5, padding=2)).cuda()
    big = gridwise.tiled(model, tile=(33, 61))
    with torch.no_grad():
        for seed in range(20):
            for pinned in (False, True):
                x = torch.randn(1, 1, 301, 270, generator=torch.Generator().manual_seed(seed))
                x = x.pin_memory() if pinned else x
                y, expected = big(x), model(x.cuda()).cpu()
                torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
