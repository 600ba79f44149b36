"""What a model has of its own, beside `forward`: kept in its conversion, or refused by name."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.testing import workers


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Frozen(Net):
    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.norm.eval()
        return self


class Saved(Net):
    def get_extra_state(self) -> Any:
        return 3

    def set_extra_state(self, state: Any) -> None:
        assert state == 3


class FrozenNorm(nn.BatchNorm2d):
    def train(self, mode: bool = True) -> FrozenNorm:
        return super().train(False)


class Doubled(nn.Linear):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return super().state_dict(*args, **kwargs)


def with_own(part: str, name: str, function: Callable[..., Any]) -> nn.Module:
    model = Net()
    module = model.get_submodule(part)
    setattr(module, name, MethodType(function, module))
    return model


def with_old_weight_norm() -> nn.Module:
    model = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(model.conv)
    return model


def with_state_hook() -> nn.Module:
    model = Net()
    model.norm.register_load_state_dict_post_hook(lambda module, keys: None)
    return model


def with_tracking(norm: Any, tracks: bool) -> nn.Module:
    norm.track_running_stats = tracks
    return nn.Sequential(nn.Conv2d(4, 4, 1), norm)


class Placed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pos", torch.ones(4, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.pos)


LOST: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "train": (Frozen, "Frozen has a 'train' of its own"),
    "extra state": (Saved, "Saved has a 'get_extra_state' of its own"),
    "train of the instance": (lambda: with_own("", "train", lambda self, mode=True: self), "Net has a 'train' of its own"),
    "train of a layer": (
        lambda: with_own("norm", "train", lambda self, mode=True: self), "norm: BatchNorm2d has a 'train' that was set"
    ),
    "forward of a layer": (
        lambda: with_own("conv", "forward", lambda self, x: 2 * x), "conv: Conv2d has a 'forward' that was set"
    ),
    "weight norm": (with_old_weight_norm, "conv: Conv2d has a tensor 'weight' that was computed"),
    "hooks for a state": (with_state_hook, "norm: BatchNorm2d has hooks for its state"),
    "instance statistics": (
        lambda: with_tracking(nn.InstanceNorm2d(4, track_running_stats=True), False), "1: InstanceNorm2d has `track_running"
    ),
    "a class of a layer": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), FrozenNorm(4)), "cannot be traced"),
}  # fmt: skip


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("name", LOST)
def test_own_ways_are_not_lost(name: str) -> None:
    make, words = LOST[name]
    with pytest.raises(UnsupportedError, match=words):
        gridwise.distribute(make(), gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1]))


@workers(2, transports=("mpi",))
def test_own_ways_that_are_kept() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    sequential = nn.Sequential(Frozen(), nn.ReLU())
    model, x = gridwise.distribute(sequential, P), torch.randn(2, 4, 4, 3)
    for each in (sequential, model):
        each.train()
        assert not each[0].norm.training if each is sequential else not model.get_submodule("0.norm").training
    mine = x[gridwise.local_slice(P, x.shape)]
    torch.testing.assert_close(model(mine), sequential(x)[gridwise.local_slice(P, x.shape)])
    changed = with_own("", "forward", lambda self, x: 2 * self.norm(self.conv(x)))
    model = gridwise.distribute(changed, P)
    torch.testing.assert_close(model(mine), changed(x)[gridwise.local_slice(P, x.shape)])
    assert isinstance(gridwise.distribute(nn.Sequential(Doubled(3, 3)), P).get_submodule("0"), Doubled)


@workers(2, transports=("mpi",))
def test_buffers_that_are_not_saved_are_not_saved() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    sequential = Placed()
    model = gridwise.distribute(sequential, P)
    for each in (model, copy.deepcopy(model)):
        assert "pos" in dict(each.named_buffers())
        assert list(each.state_dict()) == list(sequential.state_dict())
        each.load_state_dict(sequential.state_dict())


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("tracks", [False, True])
def test_tracking_that_was_switched_after_construction(tracks: bool) -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    sequential = with_tracking(nn.BatchNorm2d(4, track_running_stats=not tracks), tracks)
    if not tracks:
        sequential[1].running_mean.fill_(0.3)
    model, x = gridwise.distribute(sequential, P), torch.randn(2, 4, 4, 3)
    assert model.get_submodule("1").track_running_stats is tracks
    for mode in (False, True):
        y, expected = model.train(mode)(x[gridwise.local_slice(P, x.shape)]), sequential.train(mode)(x)
        torch.testing.assert_close(y, expected[gridwise.local_slice(P, x.shape)])
    for own, buffer in zip(model.buffers(), sequential.buffers(), strict=True):
        torch.testing.assert_close(own.as_subclass(torch.Tensor), buffer)
