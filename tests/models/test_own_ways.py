"""What a model has of its own, beside `forward`: kept by the distributed one."""

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


OWN: dict[str, Callable[[], nn.Module]] = {
    "train": Frozen,
    "extra state": Saved,
    "train of the instance": lambda: with_own("", "train", lambda self, mode=True: self),
    "train of a layer": lambda: with_own("norm", "train", lambda self, mode=True: self),
    "forward of a layer": lambda: with_own("conv", "forward", lambda self, x: 2 * x),
    "forward of the model": lambda: with_own("", "forward", lambda self, x: 2 * self.norm(self.conv(x))),
    "weight norm": with_old_weight_norm,
    "hooks for a state": with_state_hook,
    "instance statistics": lambda: with_tracking(nn.InstanceNorm2d(4, track_running_stats=True), False),
    "a class of a layer": lambda: nn.Sequential(nn.Conv2d(4, 4, 1), FrozenNorm(4)),
    "a layer of a class": lambda: nn.Sequential(nn.Conv2d(4, 4, 1), Doubled(3, 3)),
}  # fmt: skip


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("name", OWN)
def test_own_ways_are_not_lost(name: str) -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)
    sequential = OWN[name]()
    torch.manual_seed(0)
    own, x = OWN[name](), torch.randn(2, 4, 4, 3)  # torch 2.11 does not copy a weight norm
    model, mine = gridwise.distribute(own, P, example=x), x[gridwise.local_slice(P, x.shape)]
    assert isinstance(model, type(own))
    for mode in (True, False, True):
        y, expected = model.train(mode)(mine), sequential.train(mode)(x)
        torch.testing.assert_close(y, expected[gridwise.local_slice(model.P_y, expected.shape)])
        modes = [[m.training for m in each.modules()] for each in (model, sequential)]
        assert modes[0] == modes[1]
    assert list(model.state_dict()) == list(sequential.state_dict())
    sequential.load_state_dict(model.state_dict())
    model.load_state_dict(sequential.state_dict())


@workers(2, transports=("mpi",))
def test_buffers_that_are_not_saved_are_not_saved() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    sequential = Placed()
    model = gridwise.distribute(copy.deepcopy(sequential), P)
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
    model, x = gridwise.distribute(copy.deepcopy(sequential), P), torch.randn(2, 4, 4, 3)
    assert model.get_submodule("1").track_running_stats is tracks
    for mode in (False, True):
        y, expected = model.train(mode)(x[gridwise.local_slice(P, x.shape)]), sequential.train(mode)(x)
        torch.testing.assert_close(y, expected[gridwise.local_slice(P, x.shape)])
    for own, buffer in zip(model.buffers(), sequential.buffers(), strict=True):
        torch.testing.assert_close(own.as_subclass(torch.Tensor), buffer)
