"""Odd but legal models: equal to the sequential ones on every grid, in every dtype, with empty blocks, copied or planned."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.testing import workers

from .of_functions import GRIDS, Of, check, parameter


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Skipped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.inner(x), inplace=True)


def nested() -> nn.Module:
    pair = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    return nn.Sequential(Skipped(nn.Sequential(pair, Skipped(nn.Conv2d(4, 4, 1)))), nn.Sequential(), nn.Identity())


def relu_after_add(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    y += x
    y = m.relu(y)
    return y * 2 + m.conv(y)


def in_eval() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5))
    model[1].running_mean.uniform_(-1, 1)
    model[1].running_var.uniform_(0.5, 2)
    return model.eval()


def walk_over_modules(m: Any, x: Tensor) -> Tensor:
    outs = []
    for conv in m.convs:
        x = conv(x)
        outs.append(x)
    return torch.cat(outs, dim=1) * m.scales["a"] + sum(outs).mean(1, keepdim=True)


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1))
    model[0].requires_grad_(False)
    return model


def window_partition(m: Any, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    x = F.pad(x, (0, 0, 0, 1))
    y = x.view(b, c, (h + 1) // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, c)
    return m.fc(y)


CASES: dict[str, Callable[[], nn.Module]] = {
    "nested sequences with skips": nested,
    "in place after an addition": lambda: Of(relu_after_add, conv=nn.Conv2d(4, 4, 1), relu=nn.ReLU(inplace=True)),
    "batch norm in evaluation": in_eval,
    "lists and dicts of modules": lambda: Of(
        walk_over_modules,
        convs=nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)),
        scales=nn.ParameterDict({"a": parameter(12, 1, 1)}),
    ),
    "a module under two names": lambda: _twice_named(),
    "called at three sizes": lambda: Of(
        lambda m, x: m.c(x).mean((2, 3)) + m.c(x[:, :, :3]).mean((2, 3)) + m.c(x[..., ::2]).amax((2, 3)),
        c=nn.Conv2d(4, 4, 3, padding=1),
    ),
    "an unused module": lambda: Of(lambda m, x: m.a(x), a=nn.Conv2d(4, 4, 1), b=nn.Conv2d(4, 4, 1), c=nn.LSTM(2, 2)),
    "frozen": frozen,
    "windows": lambda: Of(window_partition, fc=nn.Linear(4, 3)),
    "numbers from sizes": lambda: Of(lambda m, x: x / x.size(1) + x.shape[-1] ** 0.5 - (x.size(2) // 2)),
    "rsub and friends": lambda: Of(lambda m, x: 1.0 - x + 2 / (x.abs() + 1) + (-x) ** 2 + abs(x) - x.clamp(min=0.1)),
    "a chain of norms": lambda: nn.Sequential(
        nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.LayerNorm([4, 7, 6]), nn.BatchNorm2d(4), nn.LocalResponseNorm(2)
    ),
    "channels last": lambda: nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)).to(
        memory_format=torch.channels_last
    ),
    "one dim": lambda: Of(lambda m, x: m.pool(m.conv(x.flatten(2))), conv=nn.Conv1d(4, 3, 5), pool=nn.AvgPool1d(2)),
    "a sum of everything but the batch": lambda: Of(lambda m, x: x.flatten(1).sum(1) + x.mean((1, 2, 3))),
    "where of parameters": lambda: Of(lambda m, x: torch.where(m.w > 0, x, -x) * m.w.sigmoid(), w=parameter(4, 1, 6)),
    "sorted": lambda: Of(lambda m, x: x.topk(3, dim=2)[0] + torch.sort(x, dim=2, descending=True)[0][:, :, :3]),
    "lengths": lambda: Of(lambda m, x: x / x.norm(dim=1, keepdim=True) + torch.linalg.norm(x, dim=2, keepdim=True)),
    "similar": lambda: Of(
        lambda m, x: F.cosine_similarity(x, x.sin(), dim=1) + F.cosine_similarity(x, m.w), w=parameter(4, 1, 1)
    ),
    "norms by function": lambda: Of(
        lambda m, x: F.group_norm(x, 2, m.w, m.b) + F.rms_norm(x, (6,)),
        w=parameter(4),
        b=parameter(4),
    ),
    "root mean squares": lambda: Of(lambda m, x: m.norm(x), norm=nn.RMSNorm(6)),
    "transposed by attribute": lambda: Of(lambda m, x: (x.mT @ x) * 0.1 + x.flatten(1).mean(1).reshape(-1, 1, 1, 1).data),
    "numbers of elements": lambda: Of(lambda m, x: x * 100 / x.numel() + x.mean(1, keepdim=True).nelement() * 0.01),
    "shapes put together": lambda: Of(
        lambda m, x: (
            x.reshape(x.shape[:2] + (-1,)).sin().view(x.size())  # noqa: RUF005
            + x.view(x.shape[:1] + (x.size(1), -1, 6))  # noqa: RUF005
        )
    ),
    "truth values": lambda: Of(lambda m, x: x * (~(x > 1)) * ((x > -1) | (x < -2)) + x * ((x > 0) & (x < 0.5))),
    "larger of two": lambda: Of(lambda m, x: torch.max(x, m.w) + torch.min(x, x.sin()) + torch.maximum(m.w, x), w=parameter(6)),
    "remainders": lambda: Of(lambda m, x: x % 2 + torch.atan2(x, x.cos() + 2) + torch.fmod(x, 0.7)),
    "attention over channels": lambda: Of(
        lambda m, x: m.a(x.flatten(2), x.flatten(2), x.flatten(2))[0], a=nn.MultiheadAttention(42, 3, batch_first=True)
    ),
    "attention over pixels, batch second": lambda: Of(
        lambda m, x: m.a(x.flatten(2).permute(2, 0, 1)), a=nn.TransformerEncoderLayer(4, 2, 5, 0.0)
    ),
}  # fmt: skip


def _twice_named() -> nn.Module:
    conv = nn.Conv2d(4, 4, 3, padding=1)
    return nn.Sequential(conv, nn.ReLU(), conv)


@workers(1, 2, 3, transports=("mpi",))
@pytest.mark.parametrize("name", CASES)
def test_equal_to_sequential(name: str, gridwise_setting: tuple[str, int]) -> None:
    for grid in GRIDS[gridwise_setting[1]]:
        for shape in ((3, 4, 7, 6), (1, 4, 7, 6)):
            if name == "a chain of norms" and shape[0] == 1:
                continue
            try:
                check(CASES[name], grid, shape)
            except Exception as error:
                raise AssertionError(f"{name} of {shape} on {grid}: {error}") from error


OUTPUTS: dict[str, Callable[[Any, Tensor], Any]] = {
    "a dict": lambda m, x: {"out": m.c(x), "aux": [x.mean((2, 3)), (x, m.c(x))]},
    "an ordered dict": lambda m, x: OrderedDict(b=m.c(x), a=x * 2),
    "a named tuple": lambda m, x: Pair(m.c(x), x.mean((2, 3))),
    "a dict in a named tuple": lambda m, x: Pair(m.c(x), {"a": x.mean((2, 3)), "b": [x, m.c(x).sum(3)]}),
    "a list with nothing": lambda m, x: [m.c(x), None, 3.0],
    "the input": lambda m, x: (x, m.c(x)),
    "one thing twice": lambda m, x: (y := m.c(x), y),
}


def _flat(y: Any) -> list[Tensor]:
    if isinstance(y, Tensor):
        return [y]
    parts = list(y.values()) if isinstance(y, dict) else y if isinstance(y, tuple | list) else []
    return [each for part in parts for each in _flat(part)]


@workers(2, 3)
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name: str, gridwise_setting: tuple[str, int]) -> None:
    torch.manual_seed(0)
    size = gridwise_setting[1]
    P = gridwise.world().create_cartesian_topology_partition((1, 1, size, 1))
    sequential = Of(OUTPUTS[name], c=nn.Conv2d(2, 3, 3, padding=1)).double()
    model = gridwise.distribute(copy.deepcopy(sequential), P)
    x = torch.randn(2, 2, 7, 4, dtype=torch.float64)
    expected, y = sequential(x), model(x[gridwise.local_slice(P, x.shape)].clone())
    assert type(y) is type(expected)
    assert len(_flat(y)) == len(_flat(expected)) == len(_partitions(model.P_y))
    for mine, whole, P_y in zip(_flat(y), _flat(expected), _partitions(model.P_y), strict=True):
        torch.testing.assert_close(mine, whole[gridwise.local_slice(P_y, whole.shape)])
    sum(part.square().sum() for part in _flat(y)).backward()
    sum(part.square().sum() for part in _flat(expected)).backward()
    torch.testing.assert_close(model.c.weight.grad, sequential.c.weight.grad)


def _partitions(P: Any) -> list[Any]:
    if isinstance(P, dict):
        P = tuple(P.values())
    return [each for part in P for each in _partitions(part)] if isinstance(P, tuple | list) else [P] * (P is not None)


def small_transformer() -> nn.Module:
    return Of(
        lambda m, x: m.head(m.encoder(torch.cat([m.cls.expand(x.size(0), -1, -1), x], 1))[:, 0]),
        cls=0.1 * parameter(1, 1, 4),
        encoder=nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True),
        head=nn.Linear(4, 3),
    )


@workers(2, 3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype, gridwise_setting: tuple[str, int]) -> None:
    torch.manual_seed(0)
    P = gridwise.world().create_cartesian_topology_partition((gridwise_setting[1], 1, 1))
    sequential = small_transformer().to(dtype)
    model = gridwise.distribute(copy.deepcopy(sequential), P)
    x = torch.randn(2, 5, 4).to(dtype)  # a worker of three has nothing
    y, expected = model(x[gridwise.local_slice(P, x.shape)]), sequential(x)
    assert y.dtype == dtype
    near = {"rtol": 0.1, "atol": 0.1} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(y, expected[gridwise.local_slice(model.P_y, expected.shape)], **near)
    y.sum().backward()
    expected.sum().backward()
    for mine, whole in zip(model.parameters(), sequential.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, whole.grad, **near)


@workers(2, 3)
def test_copied_saved_frozen_and_under_autocast(gridwise_setting: tuple[str, int]) -> None:
    torch.manual_seed(0)
    world = gridwise.world()
    P = world.create_partition_inclusive([0, 1]).create_cartesian_topology_partition((2, 1, 1))
    sequential = small_transformer().double()
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    model = gridwise.distribute(copy.deepcopy(sequential), P, example=x)
    mine = x[gridwise.local_slice(P, x.shape)] if P.active else gridwise.zero_volume_tensor(dtype=torch.float64)
    twin = copy.deepcopy(model)
    twin.load_state_dict(sequential.state_dict())
    gridwise.check_replicas(twin)
    expected = sequential(x)
    own = gridwise.local_slice(model.P_y, expected.shape) if P.active else slice(0, 0)
    for each in (model, twin, copy.deepcopy(twin)):
        with torch.no_grad():
            y = each(mine)
        assert not P.active or torch.allclose(y, expected[own])
    twin.cls.requires_grad_(False)
    twin(mine).sum().backward()
    assert twin.cls.grad is None
    model.float()
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        y = model(mine.float())
    assert not P.active or torch.allclose(y.double(), expected[own], atol=0.1)


@workers(2)
def test_deferred_transformers() -> None:
    torch.manual_seed(3)
    eager = small_transformer()
    torch.manual_seed(3)
    deferred = gridwise.deferred_init.deferred_init(small_transformer)
    P = gridwise.world().create_cartesian_topology_partition((2, 1, 1))
    for mine, whole in zip(gridwise.distribute(deferred, P).parameters(), eager.parameters(), strict=True):
        assert torch.equal(mine, whole)


def test_transformers_are_planned() -> None:
    planned = gridwise.plan(small_transformer().float(), (4, 1, 1), (8, 5, 4), dtype=torch.float32)
    assert all(worker.sums > 0 for worker in planned.workers)
    planned = gridwise.plan(small_transformer().float(), (1, 2, 1), (8, 5, 4))
    assert all(worker.messages > 0 for worker in planned.workers)
