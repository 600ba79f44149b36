"""Every rule of `distribute` on its own: outputs and gradients equal to the sequential model's on many grids, or named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.testing import check_equal_to_sequential, workers

from .of_functions import GRIDS, Of, check, check_or_refused, parameter


def squeezed_excitation(m: Any, x: Tensor) -> Tensor:
    b, c, _, _ = x.size()
    gate = m.fc(m.pool(x).view(b, c)).view(b, c, 1, 1)
    return x * torch.sigmoid(gate)


def shuffled(m: Any, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    x = m.conv(x).view(b, 2, c // 2, h, w)
    return torch.transpose(x, 1, 2).contiguous().view(b, -1, h, w)


def cropped_skip(m: Any, x: Tensor) -> Tensor:
    y = m.valid(x)
    dy, dx = (x.size(2) - y.size(2)) // 2, (x.size(3) - y.size(3)) // 2
    return torch.cat([x[:, :, dy : dy + y.size(2), dx : dx + y.shape[3]], y], 1)


def channels_first_norm(m: Any, x: Tensor) -> Tensor:
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    x = (x - u) / torch.sqrt(s + 1e-6)
    return m.weight[:, None, None] * x + m.bias[:, None, None]


def attention(m: Any, x: Tensor) -> Tensor:
    tokens = x.flatten(2).transpose(1, 2)
    q, k, v = m.qkv(tokens).chunk(3, dim=-1)
    weights = (q @ k.transpose(-2, -1) * 0.5).softmax(-1)
    return torch.matmul(weights, v) + F.scaled_dot_product_attention(q, k, v)


def unpooled(m: Any, x: Tensor) -> Tensor:
    y, indices = m.pool(x)
    return m.unpool(y * 2, indices, output_size=x.size())


def in_place(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    y += x
    y.mul_(2.0)
    return y.relu_()


CASES: dict[str, Callable[[], nn.Module]] = {
    "permute and back": lambda: Of(lambda m, x: (x.permute(0, 2, 3, 1) * 2).permute(0, 3, 1, 2)),
    "permute is the output": lambda: Of(lambda m, x: torch.permute(x, (2, 0, 3, 1)).sin()),
    "transpose": lambda: Of(lambda m, x: x.transpose(-1, 1).tanh().swapaxes(1, 3) + x),
    "movedim": lambda: Of(lambda m, x: torch.movedim(x, 1, -1) * 2),
    "add after permute": lambda: Of(lambda m, x: x + x.transpose(2, 3).transpose(3, 2).exp()),
    "layer norm channels last": lambda: Of(
        lambda m, x: m.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), norm=nn.LayerNorm(4)
    ),
    "functional layer norm": lambda: Of(
        lambda m, x: F.layer_norm(x.permute(0, 2, 3, 1), (4,), m.weight, m.bias, 1e-6).permute(0, 3, 1, 2),
        weight=parameter(4),
        bias=parameter(4),
    ),
    "layer norm of the first channels": lambda: Of(channels_first_norm, weight=parameter(4), bias=parameter(4)),
    "layer scale": lambda: Of(lambda m, x: x + m.gamma * m.conv(x), gamma=parameter(4, 1, 1), conv=nn.Conv2d(4, 4, 1)),
    "a scalar parameter": lambda: Of(lambda m, x: m.scale * x + m.shift, scale=parameter(1), shift=parameter()),
    "a position for every pixel": lambda: Of(lambda m, x: x + m.position, position=parameter(1, 4, 7, 6)),
    "a position along one dim": lambda: Of(lambda m, x: x * m.position.exp(), position=parameter(7, 1)),
    "a parameter with more dims": lambda: Of(lambda m, x: x * m.heads, heads=parameter(2, 1, 4, 1, 1)),
    "functional linear": lambda: Of(
        lambda m, x: F.linear(x.permute(0, 2, 3, 1), m.weight, m.bias), weight=parameter(5, 4), bias=parameter(5)
    ),
    "a matrix": lambda: Of(lambda m, x: x.permute(0, 2, 3, 1) @ m.weight, weight=parameter(4, 5)),
    "a constant of the code": lambda: Of(lambda m, x: x * torch.arange(6.0, dtype=torch.float64)),
    "global average": lambda: Of(lambda m, x: m.fc(x.mean([2, 3])), fc=nn.Linear(4, 3)),
    "global average, kept": lambda: Of(lambda m, x: x - x.mean(dim=(-2, -1), keepdim=True)),
    "mean over the batch": lambda: Of(lambda m, x: x - x.mean(0, keepdim=True)),
    "sum over the batch": lambda: Of(lambda m, x: x.sum(0)),
    "sum of rows": lambda: Of(lambda m, x: torch.sum(x, 2)),
    "largest of rows": lambda: Of(lambda m, x: x.amax(2) + x.max(dim=2)[0] + torch.logsumexp(x, dim=2)),
    "variance of pixels": lambda: Of(lambda m, x: x / x.std(dim=(2, 3), keepdim=True) + x.var(1, keepdim=True)),
    "softmax of channels": lambda: Of(lambda m, x: x.softmax(1) * F.log_softmax(x, dim=1)),
    "softmax of rows": lambda: Of(lambda m, x: F.softmax(x, dim=2) + m.soft(x), soft=nn.Softmax(dim=-1)),
    "normalised channels": lambda: Of(lambda m, x: F.normalize(x, dim=1) + F.normalize(x)),
    "gated": lambda: Of(lambda m, x: F.glu(m.conv(x), dim=1) + m.glu(m.conv(x)), conv=nn.Conv2d(4, 4, 1), glu=nn.GLU(1)),
    "rows in other order": lambda: Of(lambda m, x: x.flip(2, 3) + torch.roll(x, 1, 2) + x.cumsum(2)),
    "chunks of channels": lambda: Of(lambda m, x: torch.cat([p * (i + 1) for i, p in enumerate(_two(x))], 1)),
    "split and unbind": lambda: Of(lambda m, x: torch.cat(x.split([1, 3], 1), 1) + torch.stack(x.unbind(1), 1)),
    "chunks of rows": lambda: Of(lambda m, x: x.chunk(3, 2)[0] + x.tensor_split(2, dim=3)[1].mean(3, keepdim=True)[:, :, :3]),
    "stack": lambda: Of(lambda m, x: torch.stack([x, x.sin()], 2).sum(2) + torch.stack((x, x), dim=-1)[..., 0]),
    "a channel": lambda: Of(lambda m, x: x[:, 0] + x.select(1, -1)),
    "a row": lambda: Of(lambda m, x: x[:, :, 2] * x.select(2, 0)),
    "every second pixel": lambda: Of(lambda m, x: x[:, :, ::2, 1::2]),
    "slices of everything": lambda: Of(lambda m, x: x[1:, 1:3, -4:, 2:-1]),
    "shifted differences": lambda: Of(lambda m, x: x[:, :, 1:] - x[:, :, :-1]),
    "narrow": lambda: Of(lambda m, x: x.narrow(2, 1, 4) + x.narrow(-2, -4, 4)),
    "new dims": lambda: Of(lambda m, x: x[:, None, ..., None].squeeze(1).squeeze(-1) + x.unsqueeze(2)[:, :, 0]),
    "flatten space": lambda: Of(lambda m, x: x.flatten(2)),
    "flatten the batch": lambda: Of(lambda m, x: torch.flatten(x, 0, 1).flatten(0, 1)),
    "a view by samples": lambda: Of(
        lambda m, x: m.fc(m.conv(x).view(-1, 4 * 7 * 6)), conv=nn.Conv2d(4, 4, 1), fc=nn.Linear(168, 3)
    ),
    "a view of half samples": lambda: Of(lambda m, x: x.reshape(-1, 2 * 7 * 6)),
    "a view of pixels": lambda: Of(
        lambda m, x: m.fc(x.permute(0, 2, 3, 1).reshape(-1, x.size(1))), fc=nn.Linear(4, 3)
    ),
    "a view of rows": lambda: Of(lambda m, x: x.reshape(-1, x.shape[2], x.shape[3])),
    "a view by the batch": lambda: Of(lambda m, x: x.reshape(x.shape[0], -1)),
    "a view that keeps space": lambda: Of(shuffled, conv=nn.Conv2d(4, 4, 1)),
    "unflatten": lambda: Of(lambda m, x: x.unflatten(1, (2, 2)).sum(1) + m.apart(x)[:, 0], apart=nn.Unflatten(1, (2, -1))),
    "squeeze after pooling": lambda: Of(lambda m, x: m.pool(x).squeeze(-1).squeeze(-1), pool=nn.AdaptiveAvgPool2d(1)),
    "squeezed excitation": lambda: Of(squeezed_excitation, pool=nn.AdaptiveAvgPool2d(1), fc=nn.Linear(4, 4)),
    "excitation by convolutions": lambda: Of(
        lambda m, x: x * F.hardsigmoid(m.conv(F.adaptive_avg_pool2d(x, 1))), conv=nn.Conv2d(4, 4, 1)
    ),
    "a large kernel makes one row": lambda: Of(lambda m, x: x + m.conv(x), conv=nn.Conv2d(4, 4, (7, 1))),
    "one channel against many": lambda: Of(lambda m, x: x * m.conv(x).sigmoid(), conv=nn.Conv2d(4, 1, 1)),
    "two that may differ": lambda: Of(lambda m, x: m.a(x) + m.b(x), a=nn.MaxPool2d(3, 2, 1), b=nn.Conv2d(4, 4, 3, 2, 1)),
    "a cropped skip": lambda: Of(cropped_skip, valid=nn.Conv2d(4, 3, 3)),
    "concatenation of rows": lambda: Of(lambda m, x: torch.cat([x, x.sin()], 2)),
    "in place": lambda: Of(in_place, conv=nn.Conv2d(4, 4, 3, padding=1)),
    "unpooling": lambda: Of(
        unpooled, pool=nn.MaxPool2d(2, return_indices=True), unpool=nn.MaxUnpool2d(2)
    ),
    "attention": lambda: Of(attention, qkv=nn.Linear(4, 12)),
    "pads": lambda: Of(lambda m, x: F.pad(F.pad(x, (1, 2, 0, 1)), (1, 1, 0, 0), mode="circular")),
    "pads of channels": lambda: Of(lambda m, x: F.pad(m.conv(x)[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1)), conv=nn.Conv2d(4, 4, 1)),
    "interpolation": lambda: Of(
        lambda m, x: F.interpolate(x, scale_factor=2.0, mode="bicubic") + F.interpolate(x, (14, 12), None, "bilinear")
    ),
    "to the size of another": lambda: Of(lambda m, x: F.interpolate(m.pool(x), size=x.shape[2:]) + x, pool=nn.MaxPool2d(2)),
    "functional pooling": lambda: Of(
        lambda m, x: F.avg_pool2d(x, 3, 1, 1, False, False) + F.max_pool2d(x, 3, 1, 1) + F.adaptive_max_pool2d(x, (7, 6))
    ),
    "activations": lambda: Of(
        lambda m, x: F.gelu(x) + F.silu(m.prelu(x)) + m.one(x) + F.leaky_relu(m.gelu(x), 0.2) + F.relu6(x) + m.same(x),
        prelu=nn.PReLU(4),
        one=nn.PReLU(),
        gelu=nn.GELU(approximate="tanh"),
        same=nn.Identity(),
    ),
    "norms": lambda: Of(
        lambda m, x: m.instance(x) + m.group(x), instance=nn.InstanceNorm2d(4, affine=True), group=nn.GroupNorm(2, 4)
    ),
    "pixel shuffle": lambda: Of(lambda m, x: m.shuffle(x), shuffle=nn.PixelShuffle(2)),
    "other along channels": lambda: Of(
        lambda m, x: m.lrn(x) + m.shuffle(x) + m.soft(x),
        lrn=nn.LocalResponseNorm(2),
        shuffle=nn.ChannelShuffle(2),
        soft=nn.Softmax2d(),
    ),
    "output size": lambda: Of(
        lambda m, x: m.up(m.down(x), output_size=x.size()),
        down=nn.MaxPool2d(2, ceil_mode=True),
        up=nn.ConvTranspose2d(4, 4, 3, 2, 1),
    ),
    "a mask": lambda: Of(lambda m, x: torch.where(x > 0.1, x, 0.5 * x).masked_fill(x < -1.0, 0.25)),
    "the same layer twice": lambda: Of(lambda m, x: m.conv(m.conv(x).softmax(2)), conv=nn.Conv2d(4, 4, 1)),
    "a class of one's own": lambda: Of(lambda m, x: m.conv(x), conv=Pointwise(4, 5)),
}  # fmt: skip


class Pointwise(nn.Conv2d):
    def __init__(self, before: int, after: int) -> None:
        super().__init__(before, after, 1)


def _two(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = torch.chunk(x, 2, dim=1)
    return a, b


@workers(1, 2, 3, 4, transports=("mpi",))
@pytest.mark.parametrize("name", CASES)
def test_equal_to_sequential(name: str, gridwise_setting: tuple[str, int]) -> None:
    for grid in GRIDS[gridwise_setting[1]]:
        try:
            check(CASES[name], grid)
        except Exception as error:
            raise AssertionError(f"{name} on {grid}: {error}") from error


def changed_view(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    y.flatten(2).mul_(2.0)
    return y


def changed_base(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    z = y.view(y.size(0), -1)
    m.relu(y)
    return z


def tied() -> nn.Module:
    model = Of(lambda m, x: m.b(m.a(x)), a=nn.BatchNorm2d(4), b=nn.BatchNorm2d(4))
    model.b.weight = model.a.weight
    return model


ODD: dict[str, Callable[[], nn.Module]] = {
    "tied batch norms": tied,
    "a weight of a norm elsewhere": lambda: Of(lambda m, x: m.norm(x) * m.norm.weight.sum(), norm=nn.BatchNorm2d(4)),
    "weight norm": lambda: Of(lambda m, x: m.conv(x), conv=nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1))),
    "a view changed in place": lambda: Of(changed_view, conv=nn.Conv2d(4, 4, 1)),
    "the base of a view changed": lambda: Of(changed_base, conv=nn.Conv2d(4, 4, 1), relu=nn.ReLU(inplace=True)),
    "all dims": lambda: Of(lambda m, x: x / x.mean()),
    "indices": lambda: Of(lambda m, x: x[:, [0, 2]]),
    "a mask as an index": lambda: Of(lambda m, x: x[x > 0]),
    "random": lambda: Of(lambda m, x: x + 0 * torch.rand_like(x)),
    "modes of interpolation": lambda: Of(lambda m, x: F.interpolate(x, size=(3, 3), mode="area")),
    "antialias": lambda: Of(lambda m, x: F.interpolate(x, size=(3, 3), mode="bilinear", antialias=True)),
    "no layer": lambda: Of(lambda m, x: m.unfold(x), unfold=nn.Unfold(2)),
    "an unknown squeeze": lambda: Of(lambda m, x: x[:, :, :1].squeeze(2)),
}  # fmt: skip


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("name", ODD)
def test_equal_or_refused(name: str) -> None:
    check_or_refused(ODD[name], (1, 1, 2, 1))


@workers(2)
def test_what_does_not_broadcast_is_refused_by_all() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 1))
    torch.manual_seed(0)
    x = torch.ones(1, 4, 4, 8)
    for function, words in (
        (lambda m, x: x + m.pool(x), "must match the size|broadcast"),
        (lambda m, x: torch.cat([x, m.pool(x)], 1), "Sizes of tensors must match|expected"),
        (lambda m, x: torch.stack([x, m.pool(x)], 1), "stack expects each tensor to be equal size"),
        (lambda m, x: m.one(x).add_(x), "doesn't match the broadcast shape|broadcast"),
    ):
        model = gridwise.distribute(Of(function, pool=nn.MaxPool2d(2), one=nn.AdaptiveMaxPool2d(1)), P_x)
        with pytest.raises(gridwise.errors.PartitionError, match=words):
            model(x)


PARTS = {
    "chunk": (lambda m, x: m.conv(x).chunk(2, 1), 2),
    "chunks that are fewer": (lambda m, x: torch.chunk(m.conv(x), chunks=4, dim=1), 3),
    "split": (lambda m, x: m.conv(x).split(2, dim=1), 3),
    "split by a list": (lambda m, x: torch.split(m.conv(x), [1, 2, 1, 1], 1), 4),
    "tensor_split": (lambda m, x: m.conv(x).tensor_split((1, 3), dim=1), 3),
    "unbind": (lambda m, x: m.conv(x).unbind(1), 5),
    "some of them": (lambda m, x: m.conv(x).unbind(1)[1:4:2], 2),
    "values and indices": (lambda m, x: m.conv(x).max(1), 2),
}  # fmt: skip


@workers(3)
@pytest.mark.parametrize("name", PARTS)
def test_a_worker_outside_gets_as_many_outputs(name: str) -> None:
    function, count = PARTS[name]
    P_x = gridwise.world().create_partition_inclusive([0, 1]).create_cartesian_topology_partition((1, 1, 2, 1))
    torch.manual_seed(0)
    model = gridwise.distribute(Of(function, conv=nn.Conv2d(4, 5, 1)), P_x, example=(1, 4, 6, 6))
    parts = model(torch.ones(1, 4, 3, 6) if P_x.active else gridwise.zero_volume_tensor())
    assert len(parts) == count
    assert P_x.active or not any(part.numel() for part in parts)
    sum(part.sum() for part in parts if part.requires_grad).backward()


@workers(3)
def test_parameters_outside_of_layers_are_held_by_the_grid() -> None:
    """Names, loading, saving, copies of the model, clipping and replicas, with a worker that has no part in it."""
    world = gridwise.world()
    P_x = world.create_partition_inclusive([0, 1]).create_cartesian_topology_partition((1, 1, 2))
    torch.manual_seed(0)
    inner = Of(lambda m, x: x * m.scale + m.shift, scale=parameter(4, 1), shift=parameter())
    sequential = Of(lambda m, x: m.inner(x) * m.top, inner=inner, top=parameter(1)).double()
    model = gridwise.distribute(copy.deepcopy(sequential), P_x)
    assert list(model.state_dict()) == list(sequential.state_dict())
    assert model.top.shape == ((1,) if P_x.active else (0,))
    model.load_state_dict(sequential.state_dict())
    model.load_state_dict(model.state_dict())
    twin = copy.deepcopy(model)
    assert twin.state_dict()["inner.scale"].placement == model.inner.scale.placement is not None
    gridwise.check_replicas(model)
    x = torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    check_equal_to_sequential(twin, sequential, x, P_x)
    norm = gridwise.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    expected = torch.nn.utils.clip_grad_norm_(sequential.parameters(), 1.0)
    torch.testing.assert_close(norm, expected)
    deferred = gridwise.deferred_init.deferred_init(
        lambda: nn.Sequential(Of(lambda m, x: x * m.scale, scale=torch.rand(4, 1)))
    )
    assert gridwise.distribute(deferred, P_x).get_submodule("0").scale.shape == ((4, 1) if P_x.active else (0, 1))


@workers(2)
def test_sums_over_space_do_not_move_the_tensor() -> None:
    """A mean over cut dims sends its result, not its input."""
    P_x = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 1))
    model = gridwise.distribute(Of(lambda m, x: x.mean((2, 3))), P_x)
    x = torch.ones(2, 3, 64, 64)
    model(x)
    transport = gridwise.world().transport
    moved, move = [], transport.move
    transport.move = lambda sends, *rest: (moved.extend(v.numel() for _, vs in sends for v in vs), move(sends, *rest))[
        1
    ]
    try:
        y = model(x)
    finally:
        del transport.move
    assert sum(moved) <= 6
    torch.testing.assert_close(y, torch.ones(1, 3))
