"""Rules for functions of several tensors that lie side by side: elementwise, concatenation, stacking.

Torch can combine blocks as they are where their tensors lie on one grid and have the same extents along its cut dims. If
that is not known before the call, an `Aligned` looks at the call, and moves what has to be moved: broadcasting along a cut
dim, a tensor on another grid, the own part of a parameter.
"""

from __future__ import annotations

from typing import Any

import torch

from ...grid import Grid
from ...partition import CartesianPartition, Partition
from . import blocks
from .moves import Aligned
from .state import Extent, OnGrid, Several, State, Symbol, Whole
from .walk import Node, Unfit, Walk, dims_of, given, is_inplace


def elementwise(walk: Walk, node: Node, name: str) -> State:
    if name == "where" and len(node.args) + len(node.kwargs) == 1:
        raise Unfit("where with a condition only: how many elements there are depends on numbers")
    inplace = is_inplace(node, name)
    if inplace and isinstance(walk.states.get(node.args[0]), Whole):
        return walk.problem(node, f"{name} changes a buffer by a tensor on the grid", anything(walk, node))
    return align(walk, node, inplace=inplace)


def align(walk: Walk, node: Node, along: int | None = None, exact: bool = False, inplace: bool = False) -> OnGrid:
    """Let the tensors of a node fit together; returns where the result lies, for `along` with a new extent there."""
    tensors = [arg for arg in node.all_input_nodes if isinstance(walk.states[arg], OnGrid | Whole)]
    states = [walk.states[arg] for arg in tensors]
    placed = [state for state in states if isinstance(state, OnGrid)]
    result = placed[0] if inplace else max(placed, key=_weight)
    rank = max(len(_extents(state)) for state in states)
    target = _with_axes(result.P, rank)
    extents = tuple(common([_at(state, d, rank) for state in states]) for d in range(rank))
    cut = [d for d in range(rank) if target.shape[d] > 1]
    fits = all(_with_axes(state.P, rank) == target for state in placed) and all(
        _at(state, d, rank) == (extents[d] if isinstance(state, OnGrid) else 1) for state in states for d in cut
    )
    if not fits:
        partitions = [state.P if isinstance(state, OnGrid) else None for state in states]

        def make() -> torch.nn.Module:
            return Aligned(partitions, target, along, exact, inplace)

        together = walk.insert(node, "aligned", target, make, tuple(tensors), None)
        new = {
            arg: walk.call(node, blocks.part, (together, i), state)
            for i, (arg, state) in enumerate(zip(tensors, states, strict=True))
        }
        walk.replace(node, new)
    return OnGrid(target, tuple(Symbol() if extent is None else extent for extent in extents))


def concatenation(walk: Walk, node: Node, name: str) -> State:
    listed = given(node, 0, "tensors")
    several = walk.states.get(listed) if isinstance(listed, torch.fx.Node) else None
    placed = walk.on_grid(node)
    if isinstance(several, Several):
        rank = several.each.dim
    elif placed and len(placed) == len(node.all_input_nodes):
        rank = len(_extents(walk.states[placed[0]]))
    else:
        return walk.problem(node, f"{name} of tensors that are not all on the grid", anything(walk, node))
    stacks = name == "stack"
    dims = dims_of(given(node, 1, "dim", 0), rank + stacks)
    if dims is None:
        return walk.problem(node, f"{name} along a dim that is no number", anything(walk, node))
    dim = dims[0]
    if isinstance(several, Several):
        if several.each.is_cut([] if stacks else [dim]):
            return walk.problem(node, f"{name} along a cut dim", several.each)
        state = several.each
    elif any(len(_extents(walk.states[arg])) != rank for arg in placed):
        return walk.problem(node, f"{name} of tensors with different numbers of dims", walk.states[placed[0]])
    elif stacks:
        state = align(walk, node, exact=True)
    else:
        for x in placed:
            walk.with_whole(node, x, [dim])
        state = align(walk, node, along=dim)
    return state.reshaped(dim, dim, [_count(listed)]) if stacks else state.with_extents({dim: Symbol()})


def with_mask(walk: Walk, node: Node, name: str) -> State:
    """Scores of attention, and the mask that a module of torch was given for them."""
    mask = walk.states[node.args[1]]
    if len(_extents(mask)) not in (2, 4):
        return walk.problem(node, "attention with a mask of 3 dims", anything(walk, node))
    return align(walk, node)


def attention_check(walk: Walk, node: Node, name: str) -> State:
    """What a module of torch was given for attention: of a batch. The rehearsal has looks of torch's own at it."""
    given_to = node.args[:5]
    walk.graph.erase_node(node)
    ranks = [len(_extents(walk.states[x])) for x in given_to if isinstance(x, torch.fx.Node)]
    if ranks[:3] != [3, 3, 3]:
        raise Unfit(
            f"attention of tensors of {', '.join(map(str, ranks[:3]))} dims, and not of (batch, token, feature)"
        )
    for key, mask, allowed in zip(("key_padding_mask", "attn_mask"), given_to[3:], ([2], [2, 3]), strict=True):
        if isinstance(mask, torch.fx.Node) and len(_extents(walk.states[mask])) not in allowed:
            raise Unfit(f"attention with a {key} of {len(_extents(walk.states[mask]))} dims")
    return None


def of_parameters(states: list[Whole]) -> Whole:
    """What is elementwise of parameters, some cut by sizes that only the call knows."""
    rank = max(len(state.extents) for state in states)
    extents = [common([_at(state, d, rank) for state in states]) for d in range(rank)]
    return Whole(tuple(Symbol() if extent is None else extent for extent in extents))


def _count(listed: Any) -> Extent:
    return len(listed) if isinstance(listed, tuple | list) else Symbol()


def anything(walk: Walk, node: Node) -> State:
    """Some tensor's state, to go on with after a problem."""
    found = [state for arg in node.all_input_nodes if (state := walk.states[arg]) is not None]
    return found[0].each if isinstance(found[0], Several) else found[0]


def _weight(state: OnGrid) -> tuple[int, int]:
    """Which tensor the others are brought to: that with most dims that are not 1."""
    return state.dim, sum(extent != 1 for extent in state.extents)


def _extents(state: State) -> tuple[Extent, ...]:
    assert isinstance(state, OnGrid | Whole)
    return state.extents


def _at(state: State, d: int, rank: int) -> Extent:
    extents = _extents(state)
    at = d - rank + len(extents)
    return extents[at] if at >= 0 else 1


def common(extents: list[Extent]) -> Extent | None:
    """The extent of a broadcast dim; None if only the call can tell."""
    own = {extent for extent in extents if extent != 1}
    numbers = [extent for extent in own if isinstance(extent, int)]
    return 1 if not own else numbers[0] if numbers else own.pop() if len(own) == 1 else None


def _with_axes(P: Partition, rank: int) -> Partition:
    if P.dim == rank:
        return P
    return CartesianPartition(P.transport, Grid(P.ranks, (1,) * (rank - P.dim) + P.shape))


RULES: dict[str, Any] = {
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), concatenation),
    "with_mask": with_mask,
    "attention_check": attention_check,
}
