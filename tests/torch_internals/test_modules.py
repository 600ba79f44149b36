"""Hooks and calls of modules, and what their subclasses override and read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gridwise.torch_internals.modules import (
    HOOKS,
    AnyBatchNorm,
    add_state_hooks,
    called,
    check_input_dim,
    forward_hooks,
    forward_pre_hooks,
    has_backward_hooks,
    has_hooks,
    hooks_of,
    no_hooks,
    padding_of,
    refresh_rnn,
)


def test_hooks_are_found_where_torch_keeps_them() -> None:
    module = nn.Linear(1, 1)
    assert not has_hooks(module)
    assert set(HOOKS) == {
        name for name in vars(module) if "hook" in name and "state" not in name and "load" not in name
    }
    module.register_forward_pre_hook(lambda module, given: None)
    assert (has_hooks(module), has_hooks(module, before=1)) == (True, False)
    assert len(forward_pre_hooks(module)) == 1
    handle = module.register_forward_hook(lambda module, given, y: 2 * y)
    assert len(forward_hooks(module)) == 1
    assert has_hooks(module, before=1)
    handle.remove()
    assert not has_backward_hooks(module)
    module.register_full_backward_hook(lambda *args: None)
    assert has_backward_hooks(module)
    assert has_hooks(module, before=1)


def test_hooks_of_all_modules_are_seen() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *args: None)
    try:
        assert has_hooks(nn.Linear(1, 1))
    finally:
        handle.remove()
    assert not has_hooks(nn.Linear(1, 1))


def test_hooks_are_taken_away_and_given_back() -> None:
    module, noted = nn.Linear(1, 1), list[str]()
    module.register_forward_hook(lambda *args: noted.append("forward"))
    module.register_forward_pre_hook(lambda *args: noted.append("before"))
    kept = hooks_of(module)
    vars(module).update(no_hooks())
    module(torch.ones(1))
    assert noted == []
    vars(module).update(kept)
    module(torch.ones(1))
    assert noted == ["before", "forward"]


def test_a_call_runs_hooks_but_not_what_replaces_the_call() -> None:
    module = nn.Linear(1, 1)
    module.register_forward_hook(lambda module, given, y: y + 5)
    x, expected = torch.ones(1), module(torch.ones(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, "__call__", lambda *args: None)
        assert module(x) is None
        assert called(module, x).item() == expected.item()


def test_torchs_layers() -> None:
    for norm in (nn.BatchNorm1d(1), nn.BatchNorm2d(1), nn.BatchNorm3d(1), nn.SyncBatchNorm(1)):
        assert isinstance(norm, AnyBatchNorm)
        assert type(norm).forward is AnyBatchNorm.forward or isinstance(norm, nn.SyncBatchNorm)
    check_input_dim(nn.BatchNorm2d(1), torch.ones(1, 1, 1, 1))
    with pytest.raises(ValueError, match="expected 4D input"):
        check_input_dim(nn.BatchNorm2d(1), torch.ones(1, 1))
    assert list(padding_of(nn.Conv2d(1, 1, 3, padding=(1, 2), padding_mode="reflect"))) == [2, 2, 1, 1]


def test_a_recurrent_layer_finds_its_parameters_anew() -> None:
    rnn = nn.LSTM(1, 1)
    rnn._parameters["weight_ih_l0"] = nn.Parameter(torch.zeros(4, 1))
    refresh_rnn(rnn)
    assert rnn._flat_weights[0] is rnn.weight_ih_l0


def test_hooks_of_states_get_what_torch_gives_them() -> None:
    module, seen = nn.Linear(1, 1), dict[str, Any]()

    def before(state: dict[str, Any], prefix: str, *rest: object) -> None:
        seen["before"] = prefix, sorted(state)

    def after(own: nn.Module, state: dict[str, Any], prefix: str, local: object) -> None:
        seen["after"] = own is module, prefix, sorted(state)

    add_state_hooks(module, before, after)
    outer = nn.Sequential(module)
    outer.load_state_dict(outer.state_dict())
    assert seen == {
        "after": (True, "0.", ["0.bias", "0.weight"]),
        "before": ("0.", ["0.bias", "0.weight"]),
    }


class Own(nn.Module):
    """Overrides what subclasses may."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(1, 1), list[str]()
        self.register_buffer("count", torch.zeros(()))

    def _apply(self, fn: Any, recurse: bool = True) -> Own:
        self.calls.append("apply")
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.calls.append(f"save {prefix}")
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        self.calls.append(f"load {prefix}")
        super()._load_from_state_dict(state, prefix, *rest)


def test_subclasses_override_and_read_what_they_always_could() -> None:
    own = Own()
    assert list(own._modules) == ["inner"]
    assert list(own._buffers) == ["count"]
    assert list(own.inner._parameters) == ["weight", "bias"]
    outer = nn.Sequential(own)
    outer.double()
    outer.load_state_dict(outer.state_dict())
    assert own.calls == ["apply", "save 0.", "load 0."]
    own.inner._parameters["weight"] = nn.Parameter(torch.full((1, 1), 3.0))
    assert isinstance(own.inner.weight, Tensor)
    assert own.inner.weight.item() == 3.0
