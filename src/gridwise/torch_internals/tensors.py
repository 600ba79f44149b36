"""What tensors, storages and generators do not tell or do in public."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

default_generator: torch.Generator = torch._C.default_generator
"""The real one, even while `torch.default_generator` is replaced."""
version_of: Any = attrgetter("_version")
"""How often a tensor, or a view of it, has been written in place."""


def storage_key(x: Tensor | torch.UntypedStorage) -> int:
    """A number of the storage, also if it has no memory; no other storage has it as long as this one is alive."""
    return (x.untyped_storage() if isinstance(x, Tensor) else x)._cdata


def generator_key(generator: torch.Generator) -> int:
    """A number of the generator itself, which torch wraps anew for every operator."""
    return generator._cdata  # type: ignore[attr-defined]


def is_strided(x: Tensor) -> bool:
    """Whether torch's layout of `x` is `strided`, even if its class has a `layout` of its own."""
    return bool(torch._C.TensorBase.layout.__get__(x) == torch.strided)  # type: ignore[attr-defined]


def as_class(x: Tensor, cls: Any, requires_grad: bool) -> Any:
    """A leaf on the memory of `x` whose class is `cls`, without a call of that class."""
    return torch.Tensor._make_subclass(cls, x, requires_grad)


def wrapper_of(cls: Any, like: Tensor, device: torch.device) -> Any:
    """A tensor of `cls` without data, with the geometry and dtype of another one, that says it is on a device."""
    made = torch.Tensor._make_wrapper_subclass(
        cls, like.shape, like.stride(), like.storage_offset(), dtype=like.dtype, device=device
    )
    return with_lazy_bits(made, like.is_complex() and like.is_conj(), like.is_neg())


def with_lazy_bits(x: Any, conjugate: bool, negative: bool) -> Any:
    """`x`, marked in place as one whose conjugation and negation are yet to be carried out."""
    if conjugate:
        torch._C._set_conj(x, True)
    if negative:
        torch._C._set_neg(x, True)
    return x


def copy_hooks(real: Tensor, fake: Tensor) -> None:
    """Let a tensor share the hooks of another one: those of its gradient only if that is a leaf."""
    if fake._backward_hooks is not None and fake.grad_fn is None:
        real._backward_hooks = fake._backward_hooks
    if fake._post_accumulate_grad_hooks is not None:
        real._post_accumulate_grad_hooks = fake._post_accumulate_grad_hooks


def is_held_elsewhere(x: Tensor) -> bool:
    """Whether more than the Python object refers to a tensor."""
    return x._use_count() > 1  # type: ignore[attr-defined]


def storage_if_alive(key: int) -> torch.UntypedStorage | None:
    """The storage that a `StorageWeakRef` refers to, by its `cdata`."""
    return torch.UntypedStorage._new_with_weak_ptr(key)


def shared_handle(x: Tensor) -> tuple[Any, ...]:
    """What another process needs to open the CUDA memory of `x`; `opened_storage` takes it."""
    return tuple(x.untyped_storage()._share_cuda_())


def opened_storage(device: torch.device, handle: tuple[Any, ...]) -> torch.UntypedStorage:
    return torch.UntypedStorage._new_shared_cuda(device.index, *handle[1:])
