"""Rules for functions that give a tensor other dims: flatten, view, permute, squeeze, unsqueeze.

view, reshape     leading and trailing dims that stay what they are may be cut; those in between are brought together
                  on one worker first, where they are cut
permute           the grid's axes change their order with the dims; nothing moves
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import blocks
from .expanding import sizes_of
from .regroup import Regrouped
from .state import Extent, Lost, OnGrid, State, Symbol, product_of
from .walk import Node, Walk, dims_of, fresh, given


def flatten(walk: Walk, node: Node, x: Node, start: int, end: int) -> State:
    rank = _on(walk, x).dim
    ends = dims_of([start, end], rank)
    if ends is None or ends[0] > ends[1]:
        return walk.problem(node, "flatten of dims that are not there", Lost())
    first, last = ends[0], ends[1] + 1
    _, state = walk.with_whole(node, x, range(first, last))
    return state.reshaped(first, last, [product_of(state.extents[first:last])])


def flattened(walk: Walk, node: Node, name: str) -> State:
    return flatten(walk, node, node.args[0], given(node, 1, "start_dim", 0), given(node, 2, "end_dim", -1))


def view(walk: Walk, node: Node, name: str) -> State:
    sizes = sizes_of(walk, node, "shape" if "shape" in node.kwargs else "size")
    x, state = node.args[0], _on(walk, node.args[0])
    if not all(isinstance(n, int) or (isinstance(n, torch.fx.Node) and walk.states[n] is None) for n in sizes):
        return walk.problem(node, f"{name} to a dtype, or to sizes that are not numbers", Lost())
    asked = [walk.sizes.get(n) if isinstance(n, torch.fx.Node) else n for n in sizes]
    before, after = _kept(state.extents, asked)
    trailing = range(state.dim - after, state.dim)
    if before == 0 and sizes[0] == -1 and all(n != -1 for n in sizes[1:]) and not state.is_cut(trailing):
        return _by_sample(walk, node, x, sizes[1:])
    first, last = before, state.dim - after
    middle = sizes[before : len(sizes) - after]
    _, state = walk.with_whole(node, x, range(first, last))
    known = asked[before : len(sizes) - after]
    if middle == [-1]:
        known = [product_of(state.extents[first:last])]
    extents = [n if isinstance(n, Symbol) or (isinstance(n, int) and n != -1) else Symbol() for n in known]
    node.op, node.target, node.kwargs = "call_function", blocks.reshaped, {}
    node.args = (node.args[0], before, after, tuple(middle))
    return state.reshaped(first, last, extents)


def _by_sample(walk: Walk, node: Node, x: Node, rest: list[Any]) -> State:
    """``view(-1, ...)``: the first dim stays, unless a sample has more or fewer elements than the rest says."""
    x, state = walk.with_whole(node, x, range(1, _on(walk, x).dim))
    inside, asked = product_of(state.extents[1:]), product_of([fresh(n) for n in rest])
    result = state.reshaped(1, state.dim, [fresh(n) for n in rest])
    if inside == asked or not state.is_cut([0]):
        node.op, node.target, node.kwargs = "call_function", blocks.reshaped, {}
        node.args = (x, 0, 0, (-1, *rest))
        return result if inside == asked else result.with_extents({0: fresh()})
    P = state.P
    result = result.with_extents({0: fresh()})
    rows = walk.insert(node, "rows", P, lambda: Regrouped(P), (x, tuple(rest)), result)
    node.op, node.target, node.args, node.kwargs = "call_function", blocks.same, (rows,), {}
    return result


def _kept(extents: Sequence[Extent], asked: Sequence[Any]) -> tuple[int, int]:
    """How many leading and how many trailing dims stay what they are."""
    most = min(len(extents), len(asked))
    before = 0
    while before < most and extents[before] == asked[before]:
        before += 1
    after = 0
    while after < most - before and extents[-1 - after] == asked[-1 - after]:
        after += 1
    return before, after


def permute(walk: Walk, node: Node, name: str) -> State:
    state = _on(walk, node.args[0])
    order = _order(node, name, state.dim)
    if order is None:
        return walk.problem(node, f"{name} with dims that are not numbers", state)
    return state.permuted(order)


def _order(node: Node, name: str, rank: int) -> list[int] | None:
    """Which dim of the input each dim of the output is."""
    if name == "permute":
        given_dims = given(node, 1, "dims")
        dims = dims_of(given_dims if isinstance(given_dims, tuple | list) else list(node.args[1:]), rank)
        return dims if dims is not None and sorted(dims) == list(range(rank)) else None
    if name in ("movedim", "moveaxis"):
        sources, targets = dims_of(given(node, 1, "source"), rank), dims_of(given(node, 2, "destination"), rank)
        return None if sources is None or targets is None else _moved(rank, sources, targets)
    pair = dims_of(
        [given(node, 1, "dim0", given(node, 1, "axis0")), given(node, 2, "dim1", given(node, 2, "axis1"))], rank
    )
    if name == "t":
        pair = [0, 1] if rank == 2 else None
    if pair is None:
        return None
    order = list(range(rank))
    order[pair[0]], order[pair[1]] = order[pair[1]], order[pair[0]]
    return order


def _moved(rank: int, sources: list[int], targets: list[int]) -> list[int]:
    order = [-1] * rank
    for source, target in zip(sources, targets, strict=True):
        order[target] = source
    rest = iter(d for d in range(rank) if d not in sources)
    return [next(rest) if d == -1 else d for d in order]


def unsqueeze(walk: Walk, node: Node, name: str) -> State:
    state = _on(walk, node.args[0])
    dims = dims_of(given(node, 1, "dim"), state.dim + 1)
    if dims is None:
        return walk.problem(node, "unsqueeze of a dim that is no number", state)
    return state.reshaped(dims[0], dims[0], [1])


def squeeze(walk: Walk, node: Node, name: str) -> State:
    x, state = node.args[0], _on(walk, node.args[0])
    dims = dims_of(given(node, 1, "dim", list(range(state.dim))), state.dim)
    if dims is None or not all(isinstance(state.extents[d], int) for d in dims):
        return walk.problem(node, "squeeze of dims whose extents are known only when it is called", Lost())
    ones = [d for d in dims if state.extents[d] == 1]
    _, state = walk.with_whole(node, x, ones)
    node.op, node.target, node.args, node.kwargs = "call_function", torch.squeeze, (node.args[0], tuple(ones)), {}
    for d in sorted(ones, reverse=True):
        state = state.reshaped(d, d + 1, [])
    return state


def unflatten(walk: Walk, node: Node, x: Node, dim: Any, sizes: Any) -> State:
    dims = dims_of(dim, _on(walk, x).dim)
    if dims is None or not isinstance(sizes, tuple | list):
        return walk.problem(node, "unflatten of a dim, or to sizes, that are not numbers", Lost())
    _, state = walk.with_whole(node, x, dims)
    return state.reshaped(dims[0], dims[0] + 1, [fresh(n if n != -1 else None) for n in sizes])


def unflattened(walk: Walk, node: Node, name: str) -> State:
    return unflatten(walk, node, node.args[0], given(node, 1, "dim"), given(node, 2, "sizes"))


def pixel_shuffle(walk: Walk, node: Node, x: Node, factor: Any) -> State:
    """Channels to pixels: the channels whole, and the blocks of pixels made even again."""
    state = _on(walk, x)
    if state.dim < 3 or not isinstance(factor, int):
        return walk.problem(node, "pixel_shuffle of fewer than 3 dims, or by a factor that is no number", state)
    x, state = walk.with_whole(node, x, [state.dim - 3])
    node.op, node.target, node.args, node.kwargs = "call_function", blocks.pixel_shuffled, (x, factor), {}
    new = {d: fresh() for d in range(state.dim - 3, state.dim)}
    return walk.rebalanced(node, state.with_extents(new))


def pixel_unshuffle(walk: Walk, node: Node, x: Node, factor: Any) -> State:
    """Pixels to channels: space whole, and the blocks of channels made even again."""
    state = _on(walk, x)
    if state.dim < 3 or not isinstance(factor, int):
        return walk.problem(node, "pixel_unshuffle of fewer than 3 dims, or by a factor that is no number", state)
    x, state = walk.with_whole(node, x, [state.dim - 2, state.dim - 1])
    node.op, node.target, node.args, node.kwargs = "call_function", blocks.pixel_unshuffled, (x, factor), {}
    new = {d: fresh() for d in range(state.dim - 3, state.dim)}
    return walk.rebalanced(node, state.with_extents(new))


def pixels(walk: Walk, node: Node, name: str) -> State:
    if name == "pixel_shuffle":
        return pixel_shuffle(walk, node, node.args[0], given(node, 1, "upscale_factor"))
    return pixel_unshuffle(walk, node, node.args[0], given(node, 1, "downscale_factor"))


def _on(walk: Walk, x: Node) -> OnGrid:
    state = walk.states[x]
    assert isinstance(state, OnGrid)
    return state


RULES: dict[str, Any] = {
    "flatten": flattened,
    "squeeze": squeeze,
    "unflatten": unflattened,
    "unsqueeze": unsqueeze,
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), pixels),
    **dict.fromkeys(("view", "reshape"), view),
    **dict.fromkeys(("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t"), permute),
}
