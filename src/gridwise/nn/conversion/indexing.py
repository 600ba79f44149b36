"""Rules for parts of a tensor: ``x[...]``, narrow, select, chunk, split, unbind.

Whole dims are indexed as they are. Slices of cut dims are those of the global tensor, in balanced blocks, by one movement
(`Sliced`). A number along a cut dim, and chunks of one, need the dim whole first.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from .moves import Sliced
from .state import Extent, Lost, OnGrid, Parts, Several, State, Symbol, Whole
from .walk import Node, Unfit, Walk, dims_of, fresh, given


def getitem(walk: Walk, node: Node, name: str) -> State:
    x, index = node.args[:2]
    state = walk.states[x]
    if isinstance(state, Parts):
        known = isinstance(index, int) and -len(state.each) <= index < len(state.each)
        return state.each[index] if known else walk.problem(node, "a part that is not there, or several", Lost())
    if isinstance(state, Several):
        if isinstance(index, int):
            return state.one()
        known = state.count is not None and isinstance(index, slice) and not node.all_input_nodes[1:]
        return Several(state.each, len(range(state.count or 0)[index]) if known else None, state.uneven)
    if not isinstance(state, OnGrid):
        raise Unfit("a parameter indexed by a tensor on the grid (torch.nn.functional.embedding can look it up)")
    listed = list(index) if isinstance(index, tuple) else [index]
    if not all(_is_plain(walk, part) for part in listed):
        return walk.problem(node, "indexing by a tensor, a list or a truth value", state)
    taken = sum(part is not None and part is not Ellipsis for part in listed)
    if taken > state.dim or listed.count(Ellipsis) > 1:
        return walk.problem(node, f"{taken} indices of a tensor of {state.dim} dims", Lost())
    at = listed.index(Ellipsis) if Ellipsis in listed else len(listed)
    listed[at : at + 1] = [slice(None)] * (state.dim - taken)
    node.args = (x, tuple(listed))
    return _indexed(walk, node, x, listed)


def _indexed(walk: Walk, node: Node, x: Node, parts: list[Any]) -> State:
    """`parts` are one index for each dim, and None for new ones."""
    own = [part for part in parts if part is not None]
    numbers = [d for d, part in enumerate(own) if not isinstance(part, slice)]
    x, state = walk.with_whole(node, x, numbers)
    cut = [d for d, part in enumerate(own) if isinstance(part, slice) and part != slice(None) and state.is_cut([d])]
    if cut:
        slices = tuple(part if d in cut else slice(None) for d, part in enumerate(own))
        P = state.P
        sliced = walk.insert(node, "sliced", P, lambda: Sliced(P), (x, slices), state)
        walk.replace(node, {x: sliced})
        left = iter(slice(None) if d in cut else part for d, part in enumerate(own))
        node.args = (node.args[0], tuple(None if part is None else next(left) for part in parts))
    at = 0
    for part in parts:
        if part is None:
            state, at = state.reshaped(at, at, [1]), at + 1
        elif isinstance(part, slice):
            state, at = state if part == slice(None) else state.with_extents({at: Symbol()}), at + 1
        else:
            state = state.reshaped(at, at + 1, [])
    return state


def of_parameter(walk: Walk, node: Node, state: Whole) -> State:
    """A parameter, indexed by sizes: ``position[:, :n]``."""
    listed = list(node.args[1]) if isinstance(node.args[1], tuple) else [node.args[1]]
    taken = sum(part is not None and part is not Ellipsis for part in listed)
    plain = all(_is_plain(walk, part) for part in listed) and listed.count(Ellipsis) <= 1
    if not plain or taken > len(state.extents):
        return walk.problem(node, "a parameter indexed by a tensor, a list or a truth value", state)
    at = listed.index(Ellipsis) if Ellipsis in listed else len(listed)
    listed[at : at + 1] = [slice(None)] * (len(state.extents) - taken)
    own, extents = iter(state.extents), list[Extent]()
    for part in listed:
        extent = next(own) if part is not None else 1
        if part is None or isinstance(part, slice):
            extents.append(extent if part in (None, slice(None)) else Symbol())
    return Whole(tuple(extents))


def _is_plain(walk: Walk, part: Any) -> bool:
    if isinstance(part, torch.fx.Node):
        return walk.states[part] is None
    if isinstance(part, slice):
        ends = (part.start, part.stop, part.step)
        return all(end is None or (_is_plain(walk, end) and not isinstance(end, slice)) for end in ends)
    return part is None or part is Ellipsis or (isinstance(part, int) and not isinstance(part, bool))


def narrow(walk: Walk, node: Node, name: str) -> State:
    state = walk.states[node.args[0]]
    assert isinstance(state, OnGrid)
    dims, start, length = dims_of(given(node, 1, "dim"), state.dim), given(node, 2, "start"), given(node, 3, "length")
    if dims is None or not all(_is_plain(walk, part) for part in (start, length)):
        return walk.problem(node, "narrow by tensors", state)
    if isinstance(start, int) and isinstance(length, int):
        stop = (start + length) or None if start < 0 else start + length
    elif isinstance(start, int) and start < 0:
        return walk.problem(node, "narrow from the end by a size", state)
    else:
        stop = walk.call(node, operator.add, (start, length))
    return _as_index(walk, node, dims[0], slice(start, stop))


def select(walk: Walk, node: Node, name: str) -> State:
    state = walk.states[node.args[0]]
    assert isinstance(state, OnGrid)
    dims, index = dims_of(given(node, 1, "dim"), state.dim), given(node, 2, "index")
    if dims is None or not _is_plain(walk, index):
        return walk.problem(node, "select by a tensor", state)
    return _as_index(walk, node, dims[0], index)


def _as_index(walk: Walk, node: Node, dim: int, part: Any) -> State:
    state = walk.states[node.args[0]]
    assert isinstance(state, OnGrid)
    parts = [part if d == dim else slice(None) for d in range(state.dim)]
    node.op, node.target, node.args, node.kwargs = "call_function", operator.getitem, (node.args[0], tuple(parts)), {}
    return _indexed(walk, node, node.args[0], parts)


def parts(walk: Walk, node: Node, name: str) -> State:
    """chunk, split, tensor_split and unbind."""
    x = node.args[0]
    state = walk.states[x]
    assert isinstance(state, OnGrid)
    dims = dims_of(given(node, 1 if name == "unbind" else 2, "dim", 0), state.dim)
    if dims is None:
        return walk.problem(node, f"{name} along a dim that is no number", Several(state))
    _, state = walk.with_whole(node, x, dims)
    dim, own = dims[0], given(node, 1, "split_size_or_sections", given(node, 1, "split_size"))
    count = _count(node, name, state.extents[dim])
    if name == "unbind":
        return Several(state.reshaped(dim, dim + 1, []), count)
    even = name == "split" and isinstance(own, list | tuple) and len(set(own)) == 1
    return Several(state.with_extents({dim: fresh(own[0]) if even else Symbol()}), count, None if even else dim)


def _count(node: Node, name: str, extent: Any) -> int | None:
    """How many parts there will be. Chunks are as many as asked for, unless the extent is known to be too short for that."""
    if name == "unbind":
        return extent if isinstance(extent, int) else None
    own = next((part for key, part in node.kwargs.items() if key not in ("input", "dim")), given(node, 1, ""))
    if isinstance(own, tuple | list):
        return len(own) + (name == "tensor_split")
    if not isinstance(own, int) or own < 1:
        return None
    if name == "tensor_split":
        return own
    if not isinstance(extent, int):
        return own if name == "chunk" else None
    return math.ceil(extent / (own if name == "split" else max(1, math.ceil(extent / own))))


RULES: dict[str, Any] = {
    "getitem": getitem,
    "narrow": narrow,
    "select": select,
    **dict.fromkeys(("chunk", "split", "tensor_split", "unbind"), parts),
}
