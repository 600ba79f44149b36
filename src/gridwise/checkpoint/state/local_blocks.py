"""A worker's part of a global tensor: the global shape, and the blocks that this worker holds.

| the tensor | global shape | blocks on this worker |
|---|---|---|
| has `.placement` (a `grid.Layout`) | the layout's global shape | the block of this worker in it; if this worker is not in  |
|                                    |                           | the layout's grid, a replica of the box `.block`, or      |
|                                    |                           | nothing                                                   |
| ShardedTensor, DTensor of torch    | its own global shape      | its local shards                                          |
| any other                          | its shape                 | everything, the same on all workers                       |

Saving ("which of this do I write?") and loading ("which of this do I need?") both start from this.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from ... import deferred_init
from ...deferred_init.materializing import deferred_inside, put_in_place
from ...errors import CheckpointMismatch
from ...grid import Box, Layout, Shape
from ...torch_internals.distributed import DTensor, ShardedTensor, local_part
from ..format.manifest import CODES
from .plain_tensors import TYPES, Plain

PLACEMENT, FORMER_PLACEMENT = "placement", "layout"
"""Attributes that hold a tensor's `grid.Layout`: which block of what it is. `layout` is accepted until 0.3."""


class LocalBlock(NamedTuple):
    """A block on this worker: its box in the global tensor, its values, and whether this worker writes it."""

    box: Box | None
    """None: the whole tensor."""
    data: Tensor
    """The values; if there is an `address`, any tensor that keeps that memory alive."""
    owned: bool
    address: int = 0
    """Where the values lie in host memory exactly as they are stored; 0 if unknown."""
    size: int = 0
    """Bytes at the address."""


class LocalTensor(NamedTuple):
    """This worker's share of a global tensor; `everywhere` if all workers hold the whole of it."""

    code: str
    shape: Shape
    parts: Sequence[LocalBlock]
    everywhere: bool = False


def local_plain(plain: Plain, owned: bool) -> Iterator[LocalTensor]:
    """This worker's share of each plain tensor: one block, which is either `owned` or the same on all workers."""
    parts = zip(repeat(None), plain.tensors, repeat(owned), plain.addresses, plain.sizes)
    alone = zip(map(tuple.__new__, repeat(LocalBlock), parts))
    return map(tuple.__new__, repeat(LocalTensor), zip(plain.codes, plain.shapes, alone, repeat(not owned)))


def local_tensor(x: Tensor, key: str, rank: int) -> LocalTensor:
    """This worker's share of the tensor `x`; `key` names it in errors."""
    dtype = dtype_of(x)
    code = CODES.get(dtype)
    if code is not None and type(x) in TYPES and x.layout is torch.strided and (x.data_ptr() or not x.numel()):
        return LocalTensor(
            code, tuple(x.shape), [LocalBlock(None, x.detach() if x.requires_grad else x, False)], everywhere=True
        )
    if code is None:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in CODES)
        raise CheckpointMismatch(f"{key!r} has the dtype {dtype}, which cannot be stored.\n  fix: one of {known}.")
    if _is_dtensor(x):
        return _local_dtensor(x, key, code)
    if _is_sharded(x):
        return _local_sharded(x, code)
    layout = layout_of(x)
    check_dense(x, key)
    data = x.detach()
    if layout is None:
        return LocalTensor(code, tuple(data.shape), [LocalBlock(None, data, False)], everywhere=True)
    return LocalTensor(code, layout.global_shape, _parts_of_layout(x, data, layout, key, rank))


def layout_of(x: object) -> Layout | None:
    """The layout of a split tensor: its `placement`, or its `layout`, as the attribute was called up to 0.1."""
    for name in (PLACEMENT, FORMER_PLACEMENT):
        layout = getattr(x, name, None)
        if isinstance(layout, Layout):
            if name == FORMER_PLACEMENT:
                warnings.warn(
                    f"a {type(x).__name__} carries its Layout as `.layout`: call it `.placement`, `.layout` is torch's",
                    DeprecationWarning,
                    stacklevel=2,
                )
            return layout
    return None


def place_like(new: Any, x: Any) -> None:
    """Give `new`, of the class of `x`, the placement and the block of `x`."""
    name = PLACEMENT if isinstance(getattr(x, PLACEMENT, None), Layout) else FORMER_PLACEMENT
    setattr(new, name, getattr(x, name))
    new.block = getattr(x, "block", None)


def _parts_of_layout(x: Tensor, data: Tensor, layout: Layout, key: str, rank: int) -> list[LocalBlock]:
    owned = rank in layout.grid
    box = layout.block(rank) if owned else getattr(x, "block", None)
    if box is None or box.volume == 0:
        return []
    if tuple(data.shape) != box.shape:
        raise CheckpointMismatch(
            f"{key!r} has a placement that does not fit it: its block here is {list(box.start)} to {list(box.stop)}.",
            [f"worker {rank}: shape {tuple(data.shape)}, the block has {box.shape}"],
            "set `.placement` again after changing a parameter's shape.",
        )
    return [LocalBlock(box, data, owned)]


def _local_sharded(x: ShardedTensor, code: str) -> LocalTensor:
    parts = []
    for shard in x.local_shards():
        start = tuple(shard.metadata.shard_offsets)
        stop = tuple(a + n for a, n in zip(start, shard.metadata.shard_sizes, strict=True))
        if shard.tensor.numel():
            parts.append(LocalBlock(Box(start, stop), shard.tensor.detach(), True))
    return LocalTensor(code, tuple(x.metadata().size), parts)


def _local_dtensor(x: DTensor, key: str, code: str) -> LocalTensor:
    if any(placement.is_partial() for placement in x.placements):
        raise CheckpointMismatch(f"{key!r} is a DTensor of partial sums: redistribute it to Shard or Replicate first.")
    shape, start = local_part(x)
    local, at = x.to_local().detach(), x.device_mesh.get_coordinate()
    if not local.numel() or at is None:
        return LocalTensor(code, tuple(x.shape), [])
    replicated = [place for place, how in zip(at, x.placements, strict=True) if how.is_replicate()]
    box = Box(start, tuple(a + n for a, n in zip(start, shape, strict=True)))
    return LocalTensor(code, tuple(x.shape), [LocalBlock(box, local, not any(replicated))])


def is_tensor(x: object) -> TypeGuard[Tensor]:
    """Whether this is a tensor; a ShardedTensor of torch counts as one."""
    return isinstance(x, Tensor) or _is_sharded(x)


def _is_sharded(x: object) -> TypeGuard[ShardedTensor]:
    return ShardedTensor is not None and isinstance(x, ShardedTensor)


def dtype_of(x: Tensor) -> torch.dtype:
    """The dtype of a tensor; a ShardedTensor has the attribute only if it has exactly one local shard."""
    return x.metadata().tensor_properties.dtype if _is_sharded(x) else x.dtype


def check_dense(x: Tensor, key: str) -> None:
    """Raise for tensors that are not a plain array of numbers."""
    if x.is_quantized or (not is_deferred(x) and _torch_layout(x) is not torch.strided):
        raise CheckpointMismatch(
            f"{key!r} is a sparse or quantized tensor, which cannot be stored.\n  fix: save its parts."
        )
    if type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__ or (x.numel() and not x.data_ptr()):
        raise CheckpointMismatch(
            f"{key!r} (a {type(x).__name__}) has no memory of its own: it is fake, its storage was freed, or it is made of "
            "other tensors.\n  fix: save or load the tensors that it is made of."
        )


def _torch_layout(x: Tensor) -> torch.layout:
    """Torch's layout, strided or sparse, even of tensors that hide it behind a `.layout` of their own."""
    return torch.Tensor.layout.__get__(x)  # type: ignore[attr-defined]


def is_deferred(x: object) -> bool:
    """Whether a tensor has no memory yet: on the meta device, or deferred by `gridwise.deferred_init`."""
    return isinstance(x, Tensor) and not _is_sharded(x) and (x.is_meta or deferred_init.is_deferred(x))


def in_place_of(x: Tensor, made: Tensor) -> Tensor:
    """The tensor that replaces the deferred `x`: `x` itself, made real in place; for a meta tensor, `made`."""
    if x.is_meta:
        return made
    for owner, name in deferred_inside(x):  # a DTensor
        setattr(owner, name, put_in_place(getattr(owner, name), getattr(made, name)))
    return put_in_place(x, made)


def on_this_worker(x: Tensor, key: str, rank: int) -> tuple[Box | None, tuple[int, ...]]:
    """Which box of the global tensor this worker holds of a deferred one (None: all of it, or none), and its shape."""
    if _is_dtensor(x):
        parts = _local_dtensor(x, key, "").parts
        return (parts[0].box if parts else None), tuple(x.to_local().shape)
    layout = layout_of(x)
    if layout is None:
        return None, tuple(x.shape)
    box = layout.block(rank) if rank in layout.grid else getattr(x, "block", None)
    return box, box.shape if box is not None else (0,)


def of_the_same_kind(x: Tensor, data: Tensor) -> Tensor:
    """`data` as the same kind of tensor as the deferred `x`: a DTensor, or a parameter with its placement and block."""
    if _is_dtensor(x):
        where = (x.device_mesh, x.placements)
        data = DTensor.from_local(data, *where, run_check=False, shape=x.shape, stride=x.stride())
    if not isinstance(x, torch.nn.Parameter):
        return data
    kind = type(x) if layout_of(x) is not None else torch.nn.Parameter
    new = kind(data, requires_grad=x.requires_grad)
    if layout_of(x) is not None:
        place_like(new, x)
    return new


def _is_dtensor(x: object) -> TypeGuard[DTensor]:
    return DTensor is not None and isinstance(x, DTensor)


def materialize_rest(module: torch.nn.Module) -> None:
    """Materialise what is still deferred after a module's state is loaded: what its state does not include."""
    if not isinstance(module, torch.jit.ScriptModule):
        deferred_init.materialize_module(module, progress=False)
