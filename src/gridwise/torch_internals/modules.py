"""What modules do not tell in public: hooks, a call that is never compiled, base classes of torch's layers.

Not here, since subclasses of `torch.nn.Module` override and read them everywhere: `_parameters`, `_buffers`, `_modules`,
`_apply`, `_save_to_state_dict` and `_load_from_state_dict`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm
from torch.nn.modules.module import _has_any_global_hook

__all__ = ["AnyBatchNorm"]

HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
         "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook")  # fmt: skip
"""Attributes in which a module keeps its hooks."""


def hooks_of(module: torch.nn.Module) -> dict[str, Any]:
    """All hooks of calls that a module keeps, by attribute."""
    return {name: module.__dict__[name] for name in HOOKS}


def no_hooks() -> dict[str, Any]:
    """The same of a module that has none."""
    return hooks_of(torch.nn.Module())


def forward_hooks(module: torch.nn.Module) -> dict[int, Callable[..., Any]]:
    """Those that run after the call, as the module keeps them."""
    return module._forward_hooks


def forward_pre_hooks(module: torch.nn.Module) -> dict[int, Callable[..., Any]]:
    """Those that run before the call, as the module keeps them."""
    return module._forward_pre_hooks


def has_hooks(module: torch.nn.Module, before: int = 0) -> bool:
    """Whether a call runs hooks, of this module or of all, besides so many of its own that run before it."""
    others = module._forward_hooks or module._backward_pre_hooks or module._backward_hooks or _has_any_global_hook()
    return len(module._forward_pre_hooks) > before or bool(others)


def has_backward_hooks(module: torch.nn.Module) -> bool:
    return bool(module._backward_hooks or module._backward_pre_hooks)


def called(module: torch.nn.Module, *args: object, **kwargs: object) -> Any:
    """``module(*args, **kwargs)`` with its hooks, but never compiled, and not by what replaces `Module.__call__`."""
    return module._call_impl(*args, **kwargs)


def padding_of(conv: Any) -> list[int]:
    """How many rows a convolution pads at both ends of each dim, the last dim first; fixed when it was made."""
    return conv._reversed_padding_repeated_twice


def check_input_dim(norm: Any, x: torch.Tensor) -> None:
    """Raise as a batch norm does for an input of other dims."""
    norm._check_input_dim(x)


def refresh_rnn(rnn: torch.nn.RNNBase, are_whole: bool = True) -> None:
    """Let a recurrent layer find its parameters anew: it keeps weak references to them.

    Whole ones are laid out in one piece for cuDNN if they are on a GPU; blocks of them would be refused there.
    """
    if are_whole:
        rnn._init_flat_weights()
        return
    rnn._flat_weights = [getattr(rnn, name, None) for name in rnn._flat_weights_names]
    rnn._flat_weight_refs = [None if each is None else weakref.ref(each) for each in rnn._flat_weights]


def add_state_hooks(module: torch.nn.Module, before_load: Callable[..., None], after_state: Callable[..., Any]) -> None:
    """Call `before_load` before a state is loaded, as `load_state_dict` gives it, and `after_state` once one is made."""
    module._register_load_state_dict_pre_hook(before_load)
    module._register_state_dict_hook(after_state)
