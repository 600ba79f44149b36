"""The uninitialised parameters of Lazy modules in fake mode: no shape yet, and fake once they get one.

`torch.nn.LazyLinear` and its kin make an `UninitializedParameter` in their constructor and turn it into a Parameter at the
first forward. Both happen in torch's classes without asking the dispatcher, so while a mode is on, the two classes give
subclasses that know their keeper.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

if TYPE_CHECKING:
    from gridwise.fake.dispatch import Keeper

_new_parameter = UninitializedParameter.__new__
_new_buffer = UninitializedBuffer.__new__


class FakeUninitialized:
    """What the two kinds below share; a mixin for `torch.nn.parameter.UninitializedTensorMixin`."""

    keeper: Keeper
    pretended: torch.device

    def materialize(self, shape: Any, device: Any = None, dtype: torch.dtype | None = None) -> None:
        """Become a fake Parameter (or buffer) of this shape, under the same name."""
        assert isinstance(self, Tensor)
        target = torch.device(device) if device is not None else self.pretended
        with torch.no_grad():
            fake = self.keeper.run(
                torch.ops.aten.empty.memory_format, (list(shape),), {"dtype": dtype or self.data.dtype, "device": target}
            )
        fake = fake.requires_grad_(self.requires_grad)
        for flag in ("_is_buffer", "persistent"):
            if hasattr(self, flag):
                setattr(fake, flag, getattr(self, flag))
        if isinstance(self, UninitializedParameter):
            fake._is_param = True
        torch.utils.swap_tensors(self, fake)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        assert isinstance(self, Tensor)
        if id(self) not in memo:
            memo[id(self)] = make_uninitialized(
                self.keeper, type(self), self.requires_grad, self.pretended, self.data.dtype, vars(self).get("persistent")
            )
        return memo[id(self)]


class FakeUninitializedParameter(FakeUninitialized, UninitializedParameter):  # type: ignore[misc]
    """An `UninitializedParameter` that will be fake."""


class FakeUninitializedBuffer(FakeUninitialized, UninitializedBuffer):  # type: ignore[misc]
    """An `UninitializedBuffer` that will be fake."""


def make_uninitialized(
    keeper: Keeper, cls: Any, requires_grad: bool, device: Any, dtype: torch.dtype | None, persistent: bool | None
) -> Any:
    with torch.utils._python_dispatch._disable_current_modes():
        data = torch.empty(0, dtype=dtype)
        made = torch.Tensor._make_subclass(cls, data, requires_grad)  # type: ignore[attr-defined]
    made.keeper = keeper
    made.pretended = torch.device(device) if device is not None else torch.get_default_device()
    if persistent is not None:
        made.persistent, made._is_buffer = persistent, True
    return made


@contextmanager
def lazy_parameters_of(keeper: Keeper) -> Iterator[None]:
    """While inside, `UninitializedParameter` and `UninitializedBuffer` make the kinds of this file."""

    def parameter(cls: Any, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> Any:
        return make_uninitialized(keeper, FakeUninitializedParameter, requires_grad, device, dtype, None)

    def buffer(
        cls: Any, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True
    ) -> Any:
        return make_uninitialized(keeper, FakeUninitializedBuffer, requires_grad, device, dtype, persistent)

    UninitializedParameter.__new__ = parameter  # type: ignore[method-assign, assignment]
    UninitializedBuffer.__new__ = buffer  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        UninitializedParameter.__new__ = _new_parameter  # type: ignore[method-assign]
        UninitializedBuffer.__new__ = _new_buffer  # type: ignore[method-assign]
