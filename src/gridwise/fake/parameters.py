"""Fake parameters of special classes: uninitialised parameters of Lazy modules, and subclasses of `nn.Parameter`.

`torch.nn.LazyLinear` and the like create an `UninitializedParameter` in their constructor and turn it into a Parameter
at the first forward. A fake made by a subclass of `nn.Parameter` has to remember that class. Both happen in torch's
constructors, without the dispatcher, so these constructors are replaced by ours while a mode is active.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from gridwise.fake.tensor import FakeTensor, UnguardedFake
from gridwise.torch_internals.modes import without_modes
from gridwise.torch_internals.tensors import as_class

if TYPE_CHECKING:
    from gridwise.fake.dispatch import FakeDispatcher


Device: TypeAlias = torch.device | str | int | None


class FakeUninitialized:
    """What the two classes below share; goes before `torch.nn.parameter.UninitializedTensorMixin`."""

    is_fake = True
    dispatcher: FakeDispatcher
    pretended: torch.device

    def materialize(self, shape: Sequence[int], device: Device = None, dtype: torch.dtype | None = None) -> None:
        """Turn this object into a fake Parameter (or buffer) of this shape, in place."""
        tensor: Any = self
        target = torch.device(device) if device is not None else self.pretended
        with torch.no_grad():
            fake = self.dispatcher.run(
                torch.ops.aten.empty.memory_format,
                (list(shape),),
                {"dtype": dtype or tensor.data.dtype, "device": target},
            )
        fake = fake.requires_grad_(tensor.requires_grad)
        for flag in ("_is_buffer", "persistent"):
            if hasattr(self, flag):
                setattr(fake, flag, getattr(self, flag))
        if isinstance(tensor, UninitializedParameter):
            fake._is_param = True
        torch.utils.swap_tensors(tensor, fake)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        tensor: Any = self
        if id(self) not in memo:
            persistent = vars(self).get("persistent")
            memo[id(self)] = make_uninitialized(
                self.dispatcher, type(self), tensor.requires_grad, self.pretended, tensor.data.dtype, persistent
            )
        return memo[id(self)]


class FakeUninitializedParameter(FakeUninitialized, UninitializedParameter):
    """An `UninitializedParameter` that becomes a fake Parameter."""


class FakeUninitializedBuffer(FakeUninitialized, UninitializedBuffer):
    """An `UninitializedBuffer` that becomes a fake buffer."""


def make_uninitialized(
    dispatcher: FakeDispatcher,
    cls: Any,
    requires_grad: bool,
    device: Device,
    dtype: torch.dtype | None,
    persistent: bool | None,
) -> Any:
    if device is None:
        device = torch.empty(0).given_device  # type: ignore[attr-defined]  # the mode's default device
    with without_modes():
        data = torch.empty(0, dtype=dtype, device="cpu")
        made = as_class(data, cls, requires_grad)
    made.dispatcher = dispatcher
    made.pretended = torch.device(device)
    if persistent is not None:
        made.persistent, made._is_buffer = persistent, True
    return made


class DispatchersOfThread(threading.local):
    """The dispatchers active in this thread, innermost last; other threads keep making ordinary parameters."""

    def __init__(self) -> None:
        self.dispatchers: list[FakeDispatcher] = []


_inside = DispatchersOfThread()
_lock = threading.Lock()
_torchs: dict[Any, Any] = {}  # torch's constructors, while ours replace them
_users = 0


@contextmanager
def parameters_of(dispatcher: FakeDispatcher) -> Iterator[None]:
    """In the body, and in this thread, torch's parameter classes make the fakes that this file describes."""
    _replace_constructors()
    _inside.dispatchers.append(dispatcher)
    try:
        yield
    finally:
        _inside.dispatchers.pop()
        _put_back_constructors()


def _replace_constructors() -> None:
    global _users
    with _lock:
        if _users == 0:
            _torchs.update({cls: cls.__new__ for cls in _OURS})
            _install(_OURS)
        _users += 1


def _put_back_constructors() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _install(_torchs)


def _install(constructors: dict[Any, Any]) -> None:
    for cls, new in constructors.items():
        cls.__new__ = staticmethod(new)


def _parameter(cls: type[nn.Parameter], data: Tensor | None = None, requires_grad: bool = True) -> Any:
    made = _torchs[nn.Parameter](cls, data, requires_grad)
    if type(made) in (FakeTensor, UnguardedFake) and cls is not nn.Parameter:
        made.parameter_class = cls
    return made


def _lazy_parameter(
    cls: type[nn.Parameter], requires_grad: bool = True, device: Device = None, dtype: torch.dtype | None = None
) -> Any:
    if not _inside.dispatchers:
        return _torchs[UninitializedParameter](cls, requires_grad, device, dtype)
    return make_uninitialized(_inside.dispatchers[-1], FakeUninitializedParameter, requires_grad, device, dtype, None)


def _lazy_buffer(
    cls: type[Tensor],
    requires_grad: bool = False,
    device: Device = None,
    dtype: torch.dtype | None = None,
    persistent: bool = True,
) -> Any:
    if not _inside.dispatchers:
        return _torchs[UninitializedBuffer](cls, requires_grad, device, dtype, persistent)
    return make_uninitialized(
        _inside.dispatchers[-1], FakeUninitializedBuffer, requires_grad, device, dtype, persistent
    )


_OURS = {nn.Parameter: _parameter, UninitializedParameter: _lazy_parameter, UninitializedBuffer: _lazy_buffer}
