"""A tensor's geometry (how it views its storage), and tensors of a given geometry on the same storage or a copy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gridwise.torch_internals.tensors import with_lazy_bits

META = torch.device("meta")


class Geometry(NamedTuple):
    """Everything that distinguishes two views of one storage."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    conjugate: bool
    negative: bool


def geometry(tensor: Tensor) -> Geometry:
    offset = int(tensor.storage_offset())
    return Geometry(tensor.shape, tensor.stride(), offset, tensor.dtype, tensor.is_conj(), tensor.is_neg())


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor covers all of its storage, in order."""
    return tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes()


def on_storage(storage: torch.UntypedStorage, target: Geometry) -> Tensor:
    """A tensor of the given geometry on this storage."""
    new = torch.empty(0, dtype=target.dtype, device=storage.device)
    new.set_(storage, target.offset, target.size, target.stride)
    return with_lazy_bits(new, target.conjugate, target.negative)


def with_geometry(tensor: Tensor, target: Geometry) -> Tensor:
    """A tensor of the given geometry on the storage of `tensor`."""
    return on_storage(tensor.untyped_storage(), target)


def storage_copy(tensor: Tensor) -> Tensor:
    """A tensor of the same geometry on a copy of the whole storage."""
    storage = tensor.untyped_storage()
    new = torch.UntypedStorage(storage.nbytes(), device=tensor.device)
    if tensor.device.type != "meta":
        new.copy_(storage)
    return on_storage(new, geometry(tensor))


def without_data(tensor: Tensor) -> Tensor:
    """A meta tensor of the same geometry, on a storage of the same size."""
    return on_storage(torch.UntypedStorage(tensor.untyped_storage().nbytes(), device=META), geometry(tensor))
