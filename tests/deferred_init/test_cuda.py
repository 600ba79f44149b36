"""On CUDA: whole tensors bitwise, blocks through the whole tensor, and the CUDA generator where eager leaves it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gridwise.deferred_init import (
    deferred_init,
    materialize_module,
    materialize_shard,
    materialize_tensor,
    reason_for_whole,
)
from gridwise.fake import fake_mode

from .equality import tensors_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def build() -> nn.Module:
    net = nn.Sequential(nn.Linear(300, 200, device="cuda"), nn.LSTM(20, 30, device="cuda"), nn.Linear(3, 4).cuda())
    nn.init.trunc_normal_(net[0].weight, std=0.02)
    net.register_buffer("noise", torch.randn(1000, device="cuda"))
    net.register_buffer("picked", torch.randperm(50, device="cuda"))
    return net


@pytest.mark.parametrize("order", [1, -1])
def test_equals_eager(order: int) -> None:
    torch.manual_seed(0)
    eager = build()
    ends = torch.get_rng_state(), torch.cuda.get_rng_state()
    torch.manual_seed(0)
    model = deferred_init(build)
    assert torch.equal(torch.get_rng_state(), ends[0])
    assert torch.equal(torch.cuda.get_rng_state(), ends[1])
    torch.manual_seed(5)
    for module in list(model.modules())[::order]:
        materialize_module(module)
    for (name, a), (_, b) in zip(tensors_of(eager), tensors_of(model), strict=True):
        assert a.device == b.device, name
        assert torch.equal(a, b), name
    model[1](torch.rand(5, 2, 20, device="cuda"))


def test_blocks_come_from_the_whole_tensor() -> None:
    torch.manual_seed(0)
    eager = nn.Linear(64, 32, device="cuda")
    torch.manual_seed(0)
    layer = deferred_init(nn.Linear, 64, 32, device="cuda")
    assert reason_for_whole(layer.weight) is not None
    block = materialize_shard(layer.weight, (slice(3, 9), slice(8, 60)))
    assert block.is_cuda
    assert torch.equal(block, eager.weight[3:9, 8:60])


def test_a_cast_to_the_device_after_construction() -> None:
    torch.manual_seed(0)
    eager = nn.Linear(64, 32).cuda().half()
    torch.manual_seed(0)
    layer = deferred_init(nn.Linear, 64, 32).cuda().half()
    block = materialize_shard(layer.weight, (slice(3, 9),))
    materialize_module(layer)
    assert torch.equal(layer.weight, eager.weight)
    assert torch.equal(block, eager.weight[3:9])
    assert layer.weight.device == eager.weight.device


def test_a_recorded_product_is_not_autocast() -> None:
    def product() -> torch.Tensor:
        return torch.full((8, 8), 1.001, device="cuda") @ torch.full((8, 8), 1.001, device="cuda")

    eager, deferred = product(), deferred_init(product)
    with torch.autocast("cuda"):
        assert torch.equal(materialize_tensor(deferred), eager)


def test_the_documented_example_runs_verbatim() -> None:
    with fake_mode():
        b = torch.ones([20], device="cuda")
    assert repr(b) == "tensor(..., size=(20,), device=cuda, fake=True)"
