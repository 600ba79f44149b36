"""Models by tiles, beside themselves."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.errors import PartitionError, UnsupportedError

from .equality import check


class Residual(nn.Module):
    """Blocks whose inputs are used twice, and writes through views."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = F.relu(x + F.gelu(block(x)))
        x = x * 1
        x += 1
        x[:, 1:3] *= 2
        return x.permute(0, 2, 3, 1).flatten(1, 2)


def test_residual_blocks_and_writes_through_views() -> None:
    check(Residual().double(), torch.randn(1, 3, 36, 40).double(), tile=(9, 10))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [(20, 23), (7, 40)])
def test_strides_keep_their_phase(stride: int, size: tuple[int, int]) -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 5, stride=stride, padding=2), nn.Conv2d(4, 2, 3)
    )
    check(model.double(), torch.randn(2, 2, *size).double(), tile=(3, 2))


class SecondResults(nn.Module):
    """Operators of which only another result than the first is used."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - torch.var_mean(x, (0,), keepdim=True)[1]) * (x.sort(-1)[1] + 1.0)


def test_a_first_result_need_not_be_used() -> None:
    check(SecondResults(), torch.randn(4, 6, 8).double(), tile=(2, 3))


def test_a_tiled_model_is_the_model_in_all_else() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(0.5))
    big = gridwise.tiled(model, memory="1MiB")
    assert isinstance(big, nn.Sequential)
    assert [*big.state_dict()] == [*model.state_dict()]
    assert big[0].weight is model[0].weight
    big.eval()
    assert not model.training


def test_too_little_memory_names_the_operator_and_what_would_do() -> None:
    big = gridwise.tiled(nn.Conv2d(64, 64, 3), memory="2KiB")
    with pytest.raises(UnsupportedError, match=r"(?s)is too little: conv2d.*fix: memory="):
        big(torch.zeros(1, 64, 100, 100))


WRONG: list[dict[str, Any]] = [
    {"memory": "much"}, {"memory": 4, "tile": 3}, {"tile": 0}, {"tile": True}, {"tile": 2.5}, {"tile": (8, "8")},
    {"store": "nowhere"}, {"store": "/proc"}, {"device": "junk"}, {"device": "meta"}, {"device": "cuda:99"},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_limits_are_refused(wrong: dict) -> None:
    with pytest.raises(PartitionError, match="tiled: "):
        gridwise.tiled(nn.ReLU(), **wrong)


def test_a_second_backward_is_torchs_error() -> None:
    y = gridwise.tiled(nn.Conv2d(1, 2, 3), tile=4)(torch.ones(1, 1, 9, 9)).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_retained_graphs_can_be_used_again() -> None:
    model = nn.Conv2d(1, 2, 3)
    y = gridwise.tiled(model, tile=4)(torch.ones(1, 1, 9, 9)).sum()
    y.backward(retain_graph=True)
    once = model.weight.grad.clone()  # type: ignore[union-attr]
    y.backward()
    torch.testing.assert_close(model.weight.grad, 2 * once)


def test_gradients_may_be_part_of_a_graph_and_are_not_differentiated_again() -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh()), torch.rand(1, 1, 9, 9, requires_grad=True)
    (ours,) = torch.autograd.grad(gridwise.tiled(model, tile=4)(x).sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    torch.testing.assert_close(ours, expected)
    with pytest.raises(UnsupportedError, match="the gradients of the tiled Sequential cannot be differentiated again"):
        ours.square().sum().backward()  # a penalty, which would otherwise be lost without a word


def test_a_pickled_model_by_tiles_is_the_model() -> None:
    model = nn.Conv2d(1, 2, 3)
    loaded = pickle.loads(pickle.dumps(gridwise.tiled(model, tile=4)))
    assert type(loaded) is nn.Conv2d
    assert torch.equal(loaded.weight, model.weight)
    with pytest.raises(UnsupportedError, match="cannot be pickled"):
        pickle.dumps(gridwise.tiled(lambda x: model(x), tile=4))


def test_one_method_may_be_named_alone_and_others_have_no_plan() -> None:
    class Coder(nn.Conv2d):
        def decode(self, z: Tensor) -> Tensor:
            return self(z)

    big = gridwise.tiled(Coder(1, 2, 3), tile=4, methods="decode")
    assert big.plan((1, 1, 9, 9), method="decode").tiles > 1
    with pytest.raises(PartitionError, match=r"`method` \(='encode'\).*forward, decode"):
        big.plan((1, 1, 9, 9), method="encode")


class UNet(nn.Module):
    """Two levels, whatever the norm."""

    def __init__(self, norm: type[nn.Module], c: int = 4) -> None:
        super().__init__()

        def block(given: int, made: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(given, made, 3, padding=1), norm(made), nn.LeakyReLU(0.1))

        self.down, self.deep, self.join = block(3, c), block(c, 2 * c), block(2 * c, c)
        self.up, self.last = nn.ConvTranspose2d(2 * c, c, 2, stride=2), nn.Conv2d(c, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        top = self.down(x)
        deep = self.deep(F.max_pool2d(top, 2))
        return self.last(self.join(torch.cat([self.up(deep), top], 1)))


def group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(2, channels)


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("norm", [nn.InstanceNorm2d, nn.BatchNorm2d, group_norm])
def test_norms_have_the_statistics_of_the_whole_and_update_buffers_once(norm: type[nn.Module], mode: bool) -> None:
    check(UNet(norm).double().train(mode), torch.randn(2, 3, 24, 28).double())
