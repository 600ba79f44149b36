"""What acts on all operators called in a body: modes, hooks of saved tensors, `__torch_function__`, transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes

__all__ = ["OperatorMode", "TorchDispatchMode", "no_torch_function", "without_modes", "without_torch_function"]

without_torch_function: Any = torch._C.DisableTorchFunctionSubclass
"""In its body, operators and attributes of tensors do not ask subclasses: reading an attribute is several times faster."""
no_torch_function: Any = torch._C._disabled_torch_function_impl
"""As `__torch_function__` of a subclass: nothing is asked, and results are not made instances of the subclass."""


def never_overridden(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch.nn.functional that does not ask modes and subclasses whether they replace it.

    They are asked of what it calls in turn.
    """
    assert isinstance(function, FunctionType)
    names = {**function.__globals__, "has_torch_function_variadic": lambda *tensors: False}
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class OperatorMode(TorchDispatchMode):
    """A mode that does not import torch's compiler, which takes seconds, in order to keep itself from being compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def is_transformed() -> bool:
    """Whether a transform of torch.func (vmap, grad, jvp) is at work around the call."""
    return peek_interpreter_stack() is not None


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """In the body, no hook packs what autograd saves."""
    autograd: Any = torch._C._autograd
    hooks = []
    while (hook := autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(hook)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for hook in reversed(hooks):
            autograd._push_saved_tensors_default_hooks(*hook)


def answer_for_devices(mode: TorchDispatchMode) -> None:
    """Let a mode answer `ones(device="cuda")` on a machine without CUDA, which torch would initialise before."""
    setattr(mode, "_mode_key", torch._C._TorchDispatchModeKey.FAKE)  # noqa: B010


@contextmanager
def without_device_guards() -> Iterator[None]:
    """In the body, operators on a CUDA device that is not there set no device, and `torch.tensor` starts on the CPU."""
    torch._C._ensureCUDADeviceGuardSet()
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
