"""One block of a deferred tensor, made without the rest of it.

The tape of the tensor's storage is replayed on the block only. This is possible when every operator that wrote to it is

    a fill that does not depend on position (constants) or can be cut (`random/fills.py`), or
    elementwise, with arguments of which the same block can be made, and rounds a block alike (`rounding.py`), or
    one of these on a part of the storage (a row, a slice), of which the intersection with the block is computed.

Anything else needs the whole tensor: `NeedsWhole` names the operator, and `make_block` makes the whole tensor, copies
the block and frees the rest.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gridwise.deferred_init.random.draws import Kind
from gridwise.deferred_init.random.fills import Fill, fill_block, fills_are_known
from gridwise.deferred_init.recording.marking import FACTORIES, FILLS
from gridwise.deferred_init.recording.recorder import literal
from gridwise.deferred_init.recording.replaying import real, replay, replaying
from gridwise.deferred_init.recording.tape import External, TapeNode, Value
from gridwise.deferred_init.rounding import keeps_bits
from gridwise.fake.dispatch import operator
from gridwise.fake.geometry import is_whole
from gridwise.grid import Box, unravel

aten = torch.ops.aten

SMALL = 4096  # elements: an argument of up to this size is made whole

_CONSTANTS = {
    **dict.fromkeys((aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default), 0),
    **dict.fromkeys((aten.ones.default, aten.ones_like.default, aten.new_ones.default), 1),
}
_FULL = {aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2}  # the position of the fill value
_EMPTY = (aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default)
_COPIES = (aten.clone.default, aten._to_copy.default)
_PLAIN_WRITES = (
    aten.fill_.Scalar,
    aten.zero_.default,
    aten.copy_.default,
)  # elementwise, though torch does not tag them so


class Session:
    """What one call of `make_block` has computed so far, so that an argument used by several operators is made once."""

    def __init__(self, dry: bool = False) -> None:
        self.dry = dry  # only find out whether it is possible, on empty blocks
        self.made: dict[tuple[Value, Box, float], Tensor] = {}


class NeedsWhole(Exception):
    """The block cannot be made without the whole tensor; the message says why."""


def make_block(value: Value, box: Box) -> Tensor:
    """The block `box` of a value, contiguous and with its own storage."""
    try:
        with replaying():
            return block_of(value, box, math.inf, Session()).contiguous()
    except NeedsWhole:
        whole = replay([value])[0].detach()
        return whole[box.slices].clone(memory_format=torch.contiguous_format)


def reason_for_whole(value: Value) -> str | None:
    """Why blocks of a value have to be cut from the whole; None if they can be made separately. Computes no data."""
    try:
        with replaying():
            block_of(value, Box.of_shape((0,) * value.meta.dim()), math.inf, Session(dry=True))
    except NeedsWhole as reason:
        return str(reason)
    return None


def block_of(value: Value, box: Box, before: float, session: Session) -> Tensor:
    """The block of a value as it was before the time `before`."""
    if value.meta.numel() == 0:
        return torch.empty(box.shape, dtype=value.meta.dtype, device="cpu")
    root = value.cell.writes[0].outputs[0]
    if len(value.cell.writes[0].outputs) != 1 or root is None or not is_whole(root.meta):
        raise NeedsWhole(f"{_name(value.cell.writes[0])} gives more than one tensor, or a strided one")
    dims = _dims_in(value.meta, root.meta)
    wanted = _in_storage(box, dims, value.meta, root.meta)
    block = _as_view(_replay_block(value, root, wanted, before, session), dims)
    return block[tuple(slice(0, n) if dim is None else slice(None) for dim, n in zip(dims, box.shape, strict=True))]


def _replay_block(value: Value, root: Value, box: Box, before: float, session: Session) -> Tensor:
    writes = []
    for node in reversed(value.cell.writes):
        if node.time < before:
            writes.append(node)
            if node.overwrites:
                break
    created = value.cell.writes[0]
    if writes[-1] is created:
        writes.pop()
        block = _create(created, root, box, session)
    else:
        block = torch.empty(box.shape, dtype=root.meta.dtype, device="cpu")
    for node in reversed(writes):
        _write(node, root, box, block, session)
    return block


def _create(node: TapeNode, root: Value, box: Box, session: Session) -> Tensor:
    """The block of a new tensor, as the node that created it left it."""
    meta, func = root.meta, node.func
    if not all(k != "device" or str(v) == "cpu" for k, v in node.kwargs.items()):
        raise NeedsWhole(f"{_name(node)} is not on the CPU")
    if func in _EMPTY:
        return torch.empty(box.shape, dtype=meta.dtype, device="cpu")
    if func in _CONSTANTS or func in _FULL:
        value = node.args[_FULL[func]] if func in _FULL else _CONSTANTS[func]
        return torch.full(box.shape, value, dtype=meta.dtype, device="cpu")
    if func in FACTORIES and FACTORIES[func] != "permutation":
        block = torch.empty(box.shape, dtype=meta.dtype, device="cpu")
        fill_block(_fill(node, FACTORIES[func], meta), meta.shape, box, block)
        return block
    if func is literal:
        tensor = real(node.args[0], {})
        return tensor[box.slices].clone(memory_format=torch.contiguous_format)
    if func not in _COPIES and torch.Tag.pointwise not in getattr(func, "tags", ()):
        raise NeedsWhole(f"{_name(node)} is not elementwise")
    if node.mark is not None or operator(func).written:
        raise NeedsWhole(f"{_name(node)} cannot be cut")
    if not keeps_bits(node):
        raise NeedsWhole(f"{_name(node)} may round differently on a block")
    args = [_ingredient(arg, meta, box, node, session) for arg in node.args]
    kwargs = {k: _ingredient(v, meta, box, node, session) for k, v in node.kwargs.items()}
    made = func(*args, **kwargs)
    if func in _COPIES and made is args[0]:
        made = made.clone()
    return made.expand(box.shape).contiguous()


def _write(node: TapeNode, root: Value, box: Box, block: Tensor, session: Session) -> None:
    """Apply a node that writes in place to `block`, the block `box` of `root`."""
    target = node.args[0] if node.args else None
    if type(target) is not Value or target.cell is not root.cell or len(operator(node.func).written) != 1:
        raise NeedsWhole(f"{_name(node)} writes in an unusual way")
    meta = target.meta
    if meta.numel() == 0:
        return
    dims = _dims_in(meta, root.meta)
    written = _in_storage(Box.of_shape(meta.shape), dims, meta, root.meta)
    common = box.intersect(written)
    if common is None:
        if not session.dry:
            return
        common = written = Box(box.start, box.start)
    view = _as_view(block[common.relative_to(box).slices], dims)
    met = common.relative_to(written)
    part = Box.of_intervals(
        (0, n) if dim is None else (met.start[dim], met.stop[dim]) for dim, n in zip(dims, meta.shape, strict=True)
    )
    work = view if view.is_contiguous() else torch.empty(view.shape, dtype=view.dtype, device="cpu")
    if node.func in FILLS:
        fill_block(_fill(node, FILLS[node.func], meta), meta.shape, part, work)
    else:
        if torch.Tag.pointwise not in getattr(node.func, "tags", ()) and node.func not in _PLAIN_WRITES:
            raise NeedsWhole(f"{_name(node)} is not elementwise")
        if node.mark is not None:
            raise NeedsWhole(f"{_name(node)} draws random numbers in an order that cannot be cut")
        if not keeps_bits(node):
            raise NeedsWhole(f"{_name(node)} may round differently on a block")
        if work is not view:
            work.copy_(view)
        args = [_ingredient(arg, meta, part, node, session) for arg in node.args[1:]]
        kwargs = {k: _ingredient(v, meta, part, node, session) for k, v in node.kwargs.items()}
        node.func(work, *args, **kwargs)
    if work is not view:
        view.copy_(work)


def _fill(node: TapeNode, kind: Kind, meta: Tensor) -> Fill:
    mark = node.mark
    if mark is None or mark.device is not None or mark.end is None or not fills_are_known():
        raise NeedsWhole(f"{_name(node)} cannot be cut: its order of draws is not known on this device")
    if not meta.is_contiguous() or meta.is_complex():
        raise NeedsWhole(f"{_name(node)} fills a strided or complex tensor")
    given = list(node.args[1:]) if node.func in FILLS else []  # the dispatcher makes these positional
    low, high = given + [0.0, 1.0][len(given) :]
    return Fill(kind, meta.numel(), meta.dtype, mark, (low, high))


def _ingredient(arg: object, result: Tensor, box: Box, node: TapeNode, session: Session) -> Any:
    """An argument of an elementwise node, cut to what block `box` of the result needs."""
    if isinstance(arg, list | tuple) and any(type(item) in (Value, External) for item in arg):
        raise NeedsWhole(f"{_name(node)} takes a list of tensors")
    if type(arg) is External:
        tensor = real(arg, {})
        cut = _broadcast(tensor.shape, result.shape, box)
        return tensor[cut.slices]
    if type(arg) is not Value:
        return arg
    cut = _broadcast(arg.meta.shape, result.shape, box)
    if session.dry and arg.meta.numel() <= SMALL:
        return torch.empty(cut.shape, dtype=arg.meta.dtype, device="cpu")
    if arg.meta.numel() <= SMALL:
        whole = replay([arg], before=node.time)[0].detach()
        return whole[cut.slices]
    if operator(node.func).written and arg.cell is node.args[0].cell:
        raise NeedsWhole(f"{_name(node)} reads what it writes")
    key = (arg, cut, max(write.time for write in arg.cell.writes if write.time < node.time))
    if key not in session.made:
        session.made[key] = block_of(arg, cut, node.time, session)
    return session.made[key]


# -- geometry: views of a contiguous storage as boxes of it


def _dims_in(meta: Tensor, root: Tensor) -> list[int | None]:
    """The dim of the storage that each dim of a view runs along; None for a dim of size 1 that runs along none."""
    if meta.dtype != root.dtype:
        raise NeedsWhole("a view with another dtype")
    if meta.is_conj() != root.is_conj() or meta.is_neg() != root.is_neg():
        raise NeedsWhole("a view of conjugate or negative values")
    if meta.shape == root.shape and meta.stride() == root.stride():
        return list(range(meta.dim()))
    start = unravel(int(meta.storage_offset()), root.shape)
    by_stride = {stride: dim for dim, stride in enumerate(root.stride()) if root.shape[dim] > 1}
    dims: list[int | None] = []
    for size, stride in zip(meta.shape, meta.stride(), strict=True):
        dim = None if size == 1 else by_stride.get(stride)
        if size != 1 and (dim is None or dim in dims or start[dim] + size > root.shape[dim]):
            raise NeedsWhole("a view that is not a box of its tensor")
        dims.append(dim)
    return dims


def _in_storage(box: Box, dims: list[int | None], meta: Tensor, root: Tensor) -> Box:
    """A box of a view as a box of the storage."""
    start = unravel(int(meta.storage_offset()), root.shape)
    ends = [(s, s + 1) for s in start]
    for dim, first, last in zip(dims, box.start, box.stop, strict=True):
        if dim is not None:
            ends[dim] = (start[dim] + first, start[dim] + last)
    return Box.of_intervals(ends)


def _as_view(block: Tensor, dims: list[int | None]) -> Tensor:
    """A block of the storage, viewed with the dims of the view."""
    kept = [dim for dim in dims if dim is not None]
    dropped = [dim for dim in range(block.dim()) if dim not in kept]
    view = block.permute([*kept, *dropped])
    for _ in dropped:
        view = view.squeeze(-1)
    for at, dim in enumerate(dims):
        if dim is None:
            view = view.unsqueeze(at)
    return view


def _broadcast(shape: torch.Size, result: torch.Size, box: Box) -> Box:
    """The part of an argument of this shape that a block of the result needs."""
    ends = list(zip(box.start, box.stop, strict=True))[len(result) - len(shape) :]
    return Box.of_intervals((0, 1) if n == 1 else end for n, end in zip(shape, ends, strict=True))


def _name(node: TapeNode) -> str:
    return str(getattr(node.func, "__name__", node.func))
