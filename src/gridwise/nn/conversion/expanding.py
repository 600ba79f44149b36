"""Rules for functions that repeat a tensor along dims: expand, expand_as, repeat, tile, repeat_interleave.

Of a tensor on the grid, the dims that are repeated are whole. A parameter that is expanded to the size of a tensor on the
grid, as the class token of a vision transformer is to the batch, comes to lie on the grid, cut along that dim: every
worker takes its own part, and nothing is sent.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from ...grid import Layout
from ...partition import Partition
from . import joining
from .state import Extent, OnGrid, State, Symbol, Whole
from .walk import Node, Unfit, Walk, dims_of, fresh, given


class Expanded(torch.nn.Module):
    """This worker's block of a value that all have, expanded to sizes of the global tensor on `P`."""

    def __init__(self, P: Partition) -> None:
        super().__init__()
        self.P = P

    def forward(self, value: Tensor, *sizes: int) -> Tensor:
        lacking = len(sizes) - value.dim()
        own = (1,) * lacking + tuple(value.shape)
        shape = tuple(n if size == -1 else size for n, size in zip(own, sizes, strict=True))
        box = Layout.balanced(self.P.grid, shape).block(self.P.transport.rank)
        value = value.reshape(own)[tuple(slice(None) if n == 1 else s for n, s in zip(own, box.slices, strict=True))]
        return value.expand(box.shape)


def sizes_of(walk: Walk, node: Node, name: str) -> list[Any]:
    """The sizes that a node asks for, one by one: given singly, as a tuple, or as the shape of another tensor."""
    asked = given(node, 1, name, ())
    listed = list(asked) if isinstance(asked, tuple | list) else list(node.args[1:]) or [asked]
    known = walk.sizes.get(listed[0]) if len(listed) == 1 and isinstance(listed[0], torch.fx.Node) else None
    if isinstance(known, tuple):
        shape, listed = listed[0], []
        for i, extent in enumerate(known):
            listed.append(-1 if extent == -1 else walk.call(node, operator.getitem, (shape, i)))
            if extent != -1:
                walk.sizes[listed[-1]] = extent
    return listed


def expand(walk: Walk, node: Node, name: str) -> State:
    x, sizes = node.args[0], sizes_of(walk, node, "size")
    state = walk.states[x]
    if not _are_sizes(walk, sizes):
        return walk.problem(node, f"{name} to sizes that are not numbers", state)
    asked = [walk.sizes.get(n) if isinstance(n, torch.fx.Node) else n for n in sizes]
    if isinstance(state, Whole):
        return _onto_the_grid(walk, node, state, sizes, asked)
    assert isinstance(state, OnGrid)
    lead = len(sizes) - state.dim
    stays = [n == -1 or (n is not None and n == own) for n, own in zip(asked[lead:], state.extents, strict=True)]
    x, state = walk.with_whole(node, x, [d for d, stay in enumerate(stays) if not stay])
    own = [-1 if stay else n for n, stay in zip(sizes[lead:], stays, strict=True)]
    node.op, node.target, node.args, node.kwargs = "call_method", "expand", (x, *sizes[:lead], *own), {}
    state = state.with_extents({d: _extent(asked[lead + d]) for d, stay in enumerate(stays) if not stay})
    return state.reshaped(0, 0, [_extent(n) for n in asked[:lead]])


def _onto_the_grid(walk: Walk, node: Node, state: Whole, sizes: list[Any], asked: list[Any]) -> State:
    """A parameter, cut along the first dim whose size is that of a tensor on the grid."""
    along = next((d for d, n in enumerate(asked) if n in walk.sources and isinstance(sizes[d], torch.fx.Node)), None)
    if along is None:
        if not any(isinstance(n, torch.fx.Node) for n in sizes):
            return walk.whole_dims(node)
        return walk.problem(node, "expand of a parameter to sizes that only the call knows", state)
    size = walk.sources[asked[along]].size
    P = walk.P_x.create_cartesian_topology_partition([size if d == along else 1 for d in range(len(sizes))])
    own = (1,) * (len(sizes) - len(state.extents)) + state.extents
    result = OnGrid(P, tuple(o if n == -1 else _extent(n) for n, o in zip(asked, own, strict=True)))
    expanded = walk.insert(node, "expanded", P, lambda: Expanded(P), (node.args[0], *sizes), result)
    node.op, node.target, node.args, node.kwargs = "call_method", "clone", (expanded,), {}
    return result


def expand_as(walk: Walk, node: Node, name: str) -> State:
    other = given(node, 1, "other")
    if isinstance(walk.states.get(other), OnGrid):
        return joining.align(walk, node)
    return walk.problem(node, f"{name} a parameter", walk.states[node.args[0]])


def repeat(walk: Walk, node: Node, name: str) -> State:
    x, counts = node.args[0], sizes_of(walk, node, "dims" if name == "tile" else "repeats")
    state = walk.states[x]
    if not _are_sizes(walk, counts):
        return walk.problem(node, f"{name} by what is no number", state)
    if isinstance(state, Whole):
        own = (1,) * (len(counts) - len(state.extents)) + state.extents
        if all(isinstance(n, int) for n in counts):
            return walk.whole_dims(node)
        if len(own) > len(counts) or any(n != 1 != o for n, o in zip(counts, own, strict=True)):
            return walk.problem(node, f"{name} of a parameter to sizes that only the call knows", state)
        sizes = [-1 if n == 1 and d >= len(own) - len(state.extents) else n for d, n in enumerate(counts)]
        asked = [walk.sizes.get(n) if isinstance(n, torch.fx.Node) else n for n in sizes]
        return _onto_the_grid(walk, node, state, sizes, asked)
    assert isinstance(state, OnGrid)
    if len(counts) < state.dim:
        counts = [1] * (state.dim - len(counts)) + counts
    lead = len(counts) - state.dim
    x, state = walk.with_whole(node, x, [d for d, n in enumerate(counts[lead:]) if n != 1])
    node.op, node.target, node.args, node.kwargs = "call_method", "repeat", (x, *counts), {}
    state = state.with_extents({d: Symbol() for d, n in enumerate(counts[lead:]) if n != 1})
    return state.reshaped(0, 0, [fresh(n) for n in counts[:lead]])


def repeat_interleave(walk: Walk, node: Node, name: str) -> State:
    x, count = node.args[0], given(node, 1, "repeats")
    state = walk.states[x]
    if not isinstance(state, OnGrid):
        raise Unfit(f"{name} of a parameter by a size that only the call knows")
    dims = dims_of(given(node, 2, "dim"), state.dim)
    if dims is None or not _are_sizes(walk, [count]):
        return walk.problem(node, f"{name} without a dim, or by a tensor", state)
    _, state = walk.with_whole(node, x, dims)
    return state.with_extents({dims[0]: Symbol()})


def arange(walk: Walk, node: Node) -> State:
    """``torch.arange`` of sizes: whole on every worker."""
    ends = [part for part in node.args if part is not None]
    asked = ends[0] if len(ends) == 1 else ends[1] if len(ends) == 2 and ends[0] == 0 else None
    known = walk.sizes.get(asked) if isinstance(asked, torch.fx.Node) else asked
    return Whole((_extent(known),))


def _are_sizes(walk: Walk, sizes: list[Any]) -> bool:
    return all(isinstance(n, int) or (isinstance(n, torch.fx.Node) and walk.states[n] is None) for n in sizes)


def _extent(asked: Any) -> Extent:
    return asked if isinstance(asked, int | Symbol) else Symbol()


RULES: dict[str, Any] = {
    "expand": expand,
    "expand_as": expand_as,
    **dict.fromkeys(("repeat", "tile"), repeat),
    "repeat_interleave": repeat_interleave,
}
