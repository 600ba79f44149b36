"""`fake_mode`: while it is active, every tensor that is created is fake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gridwise.fake.dispatch import PLAIN, PLAIN_CUDA, FakeDispatcher, operator
from gridwise.fake.nested import Args, Kwargs, tensors_in
from gridwise.fake.parameters import DispatchersOfThread, parameters_of
from gridwise.fake.tensor import FakeTensor
from gridwise.torch_internals.modes import TorchDispatchMode, answer_for_devices, without_device_guards
from gridwise.torch_internals.operators import OpOverload

aten = torch.ops.aten


_active = DispatchersOfThread()
"""Keepers of the active fake modes, without those of `deferred_init`."""


class FakeFactories(TorchDispatchMode):
    """Sends factories, and operators with a fake argument, to a dispatcher; all other operators run for real."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch wraps every call, which imports its compiler

    def __init__(self, dispatcher: FakeDispatcher) -> None:
        super().__init__()
        self.dispatcher = dispatcher
        self.shortcuts = dispatcher.shortcuts()
        if dispatcher.pretends_devices and not _active.dispatchers and not torch.cuda.is_available():
            # Torch initialises CUDA while it parses `ones(device="cuda")`, unless a mode with this key is active.
            answer_for_devices(self)

    def __torch_dispatch__(self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        shortcut = self.shortcuts.get(func)
        if shortcut is not None:
            result = shortcut(func, args, kwargs)
            if result is not NotImplemented:
                return result
        has_tensors = False
        for tensor in tensors_in(args, kwargs):
            if isinstance(tensor, FakeTensor):
                return tensor.dispatcher.run(func, args, kwargs)
            has_tensors = True
        if func is aten.lift_fresh.default:
            return self.dispatcher.constant(args[0])
        if func is aten.empty_like.default and args[0].is_meta and kwargs.get("device") is not None:
            has_tensors = False  # `to_empty` is a factory: of a meta tensor only the geometry is used
        if has_tensors or not operator(func).has_device or str(kwargs.get("device")) == "meta":
            return self.dispatcher.run_real(func, args, kwargs)
        return self.dispatcher.run(func, args, kwargs)


@contextmanager
def fake_mode(*, fake_cuda: bool = False) -> Iterator[None]:
    """Make every new tensor fake, without data.

    Parameters
    ----------
    fake_cuda
        Pretend that this machine has CUDA devices. Otherwise a fake CUDA tensor needs a machine with CUDA.

    Notes
    -----
    In a torch built without CUDA, autograd cannot record operators on a pretended CUDA device: an operator that it
    would record raises. Under `torch.no_grad()` everything works.

    Modes nest; the outermost one's `fake_cuda` applies. An operator whose tensors are all real runs for real.

    Examples
    --------
    >>> with fake_mode():
    ...     a = torch.ones([10])
    >>> a
    tensor(..., size=(10,), fake=True)
    """
    dispatcher = _active.dispatchers[-1] if _active.dispatchers else PLAIN_CUDA if fake_cuda else PLAIN
    factories = FakeFactories(dispatcher)
    _active.dispatchers.append(dispatcher)
    try:
        with parameters_of(dispatcher), pretended_cuda(dispatcher), factories:
            yield
    finally:
        _active.dispatchers.pop()


@contextmanager
def pretended_cuda(dispatcher: FakeDispatcher) -> Iterator[None]:
    """If CUDA is pretended: no device guards, and literals (`torch.tensor`) that start on the CPU."""
    if not dispatcher.fake_cuda or torch.cuda.is_available():
        yield
        return
    with without_device_guards():
        yield
