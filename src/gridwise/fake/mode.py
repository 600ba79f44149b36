"""`fake_mode`: while it is on, everything that makes a tensor makes a fake one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from gridwise.fake.dispatch import PLAIN, PLAIN_CUDA, Keeper, operator
from gridwise.fake.nested import Args, Kwargs, tensors_in
from gridwise.fake.parameters import KeepersOfThread, parameters_of
from gridwise.fake.tensor import FakeTensor

aten = torch.ops.aten


_active = KeepersOfThread()
"""Of fake modes alone."""


class FakeFactories(TorchDispatchMode):
    """Sends factories, and operators with a fake among their tensors, to a keeper; all others run for real."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps every call, and imports its compiler for that

    def __init__(self, keeper: Keeper) -> None:
        super().__init__()
        self.keeper = keeper
        self.shortcuts = keeper.shortcuts()
        if keeper.pretends_devices and not _active.keepers and not torch.cuda.is_available():
            # Torch starts CUDA while it reads the arguments of `ones(device="cuda")`, unless a mode of this key is on.
            self._mode_key = torch._C._TorchDispatchModeKey.FAKE

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
                return tensor.keeper.run(func, args, kwargs)
            has_tensors = True
        if func is aten.lift_fresh.default:
            return self.keeper.constant(args[0])
        if func is aten.empty_like.default and args[0].is_meta and kwargs.get("device") is not None:
            has_tensors = False  # `to_empty`: a factory, since a meta tensor lends its geometry only
        if has_tensors or not operator(func).has_device or str(kwargs.get("device")) == "meta":
            return self.keeper.run_real(func, args, kwargs)
        return self.keeper.run(func, args, kwargs)


@contextmanager
def fake_mode(*, fake_cuda: bool = False) -> Iterator[None]:
    """Make every new tensor a fake one, without data.

    Parameters
    ----------
    fake_cuda
        Pretend that this machine has CUDA devices. Without it, a CUDA tensor needs a machine that has them.

    Notes
    -----
    A torch that was built without CUDA cannot record for autograd on a pretended device: what would be recorded there is
    an error, under `torch.no_grad()` all works.

    Modes nest; the outermost decides on `fake_cuda`. An operator whose tensors are all real runs for real.

    Examples
    --------
    >>> with fake_mode():
    ...     a = torch.ones([10])
    >>> a
    tensor(..., size=(10,), fake=True)
    """
    keeper = _active.keepers[-1] if _active.keepers else PLAIN_CUDA if fake_cuda else PLAIN
    factories = FakeFactories(keeper)
    _active.keepers.append(keeper)
    try:
        with parameters_of(keeper), pretended_cuda(keeper), factories:
            yield
    finally:
        _active.keepers.pop()


@contextmanager
def pretended_cuda(keeper: Keeper) -> Iterator[None]:
    """Where CUDA is asked for and not there: no device guards, and literals (`torch.tensor`) that begin on the CPU."""
    if not keeper.fake_cuda or torch.cuda.is_available():
        yield
        return
    torch._C._ensureCUDADeviceGuardSet()
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
