"""Rules for functions that look along dims: sums, means, softmax and their like.

Where these dims are whole they run as they are. Sums and means over cut dims are local sums, added: the tensor stays where
it is (`Summed`). All others bring the dims together first, and cut another.
"""

from __future__ import annotations

from typing import Any

import torch

from . import blocks
from .moves import Summed
from .state import Lost, OnGrid, Several, State, Symbol, Whole
from .walk import Node, Walk, dims_of, fresh, given


def reduction(walk: Walk, node: Node, name: str) -> State:
    x = node.args[0]
    state = walk.states[x]
    assert isinstance(state, OnGrid)
    dims = _reduced(given(node, 1, "dim", given(node, 1, "axis")), state.dim, none_is_all=name not in ("all", "any"))
    if dims is None:
        return walk.problem(node, f"{name} over all dims", Lost())
    keeps = bool(given(node, 3 if name[:3] in ("var", "std") else 2, "keepdim", False))
    sums = name in ("sum", "mean") and not {"dtype", "out"} & set(node.kwargs) and len(node.args) < 4
    if state.is_cut(dims) and sums:
        return _summed(walk, node, x, dims, name == "mean", keeps)
    _, state = walk.with_whole(node, x, dims)
    return _without(state, dims, keeps)


def _reduced(asked: Any, rank: int, none_is_all: bool = True) -> list[int] | None:
    """The dims that are reduced; None for all of them, or if nobody can tell. To most functions an empty list means all."""
    dims = None if asked is None else dims_of(asked, rank)
    return None if dims is None or len(dims) == rank or (none_is_all and not dims) else dims


def _summed(walk: Walk, node: Node, x: Node, dims: list[int], mean: bool, keeps: bool) -> State:
    state = walk.states[x]
    assert isinstance(state, OnGrid)
    P, small = state.P, state.with_extents(dict.fromkeys(dims, 1))
    summed = walk.insert(node, "summed", P, lambda: Summed(P, dims, mean), (x,), small)
    node.op, node.target, node.kwargs, node.args = "call_function", torch.squeeze, {}, (summed, tuple(dims))
    if keeps:
        node.target, node.args = blocks.same, (summed,)
        return small
    _, small = walk.with_whole(node, summed, dims)
    return _without(small, dims, False)


def _without(state: OnGrid, dims: list[int], keeps: bool) -> OnGrid:
    if keeps:
        return state.with_extents(dict.fromkeys(dims, 1))
    for d in sorted(dims, reverse=True):
        state = state.reshaped(d, d + 1, [])
    return state


def values_and_indices(walk: Walk, node: Node, name: str) -> State:
    """max, min, median and their like along a dim, which return two tensors; of two tensors they are elementwise."""
    from .joining import elementwise

    if sum(isinstance(walk.states[arg], OnGrid | Whole) for arg in node.all_input_nodes) > 1:
        return elementwise(walk, node, name)
    state = reduction(walk, node, name)
    return Several(state, 2) if isinstance(state, OnGrid) else state


def along(walk: Walk, node: Node, name: str) -> State:
    default = 1 if name in ("normalize", "channel_shuffle", "local_response_norm") else None
    if name in ("channel_shuffle", "local_response_norm"):
        return along_dims(walk, node, node.args[0], 1, name)
    place = {"normalize": 2, "roll": 2}.get(name, 1)
    dim = given(node, place, "dim", given(node, place, "dims", given(node, place, "axis", default)))
    if name == "flip" and isinstance(dim, int):
        dim = list(node.args[1:])
    return along_dims(walk, node, node.args[0], dim, name)


def along_dims(walk: Walk, node: Node, x: Node, dim: Any, name: str) -> State:
    state = walk.states[x]
    assert isinstance(state, OnGrid)
    dims = dims_of(dim, state.dim)
    if dims is None or not (dims or name == "flip"):
        return walk.problem(node, f"{name} without a dim", state)
    _, state = walk.with_whole(node, x, dims)
    return state.with_extents({dims[0]: Symbol()}) if name in ("glu", "GLU") else state


def layer_norm(walk: Walk, node: Node, name: str) -> State:
    """`F.layer_norm` with parameters of the model: its dims whole."""
    state, shape = walk.states[node.args[0]], given(node, 1, "normalized_shape")
    assert isinstance(state, OnGrid)
    if not isinstance(shape, tuple | list):
        return walk.problem(node, f"{name} of dims that are not numbers", state)
    if len(shape) >= state.dim:
        return walk.problem(node, f"{name} over all dims", state)
    _, state = walk.with_whole(node, node.args[0], range(state.dim - len(shape), state.dim))
    return state.with_extents({state.dim - len(shape) + i: fresh(n) for i, n in enumerate(shape)})


def ordered(walk: Walk, node: Node, name: str) -> State:
    """sort and topk: values and indices along a whole dim."""
    state = walk.states[node.args[0]]
    assert isinstance(state, OnGrid)
    dims = dims_of(given(node, 2 if name == "topk" else 1, "dim", -1), state.dim)
    if dims is None:
        return walk.problem(node, f"{name} along a dim that is no number", Several(state, 2))
    _, state = walk.with_whole(node, node.args[0], dims)
    return Several(state.with_extents({dims[0]: Symbol()}) if name == "topk" else state, 2)


def norm(walk: Walk, node: Node, name: str) -> State:
    """Norms of vectors along whole dims."""
    x = node.args[0]
    state = walk.states[x]
    assert isinstance(state, OnGrid)
    dims = _reduced(given(node, 2, "dim"), state.dim)
    if dims is None:
        return walk.problem(node, f"{name} over all dims", Lost())
    _, state = walk.with_whole(node, x, dims)
    return _without(state, dims, bool(given(node, 3, "keepdim", False)))


def similarity(walk: Walk, node: Node, name: str) -> State:
    """`F.cosine_similarity` along a whole dim of tensors that lie alike."""
    from .joining import align

    ranks = {state.dim for arg in node.all_input_nodes if isinstance(state := walk.states[arg], OnGrid)}
    dims = dims_of(given(node, 2, "dim", 1), min(ranks))
    if dims is None or len(ranks) > 1:
        return walk.problem(node, f"{name} of tensors with different numbers of dims", Lost())
    for x in walk.on_grid(node):
        walk.with_whole(node, x, dims)
    return _without(align(walk, node), dims, False)


def group_norm(walk: Walk, node: Node, name: str) -> State:
    """`F.group_norm` with parameters of the model: all but the batch whole."""
    state = walk.states[node.args[0]]
    assert isinstance(state, OnGrid)
    _, state = walk.with_whole(node, node.args[0], range(1, state.dim))
    return state


RULES: dict[str, Any] = {
    **dict.fromkeys(("sort", "topk"), ordered),
    **dict.fromkeys(("norm", "linalg_norm", "linalg_vector_norm"), norm),
    "cosine_similarity": similarity,
    "group_norm": group_norm,
    **dict.fromkeys("mean sum amax amin logsumexp var std argmax argmin all any prod".split(), reduction),  # noqa: SIM905
    **dict.fromkeys(("max", "min", "median", "var_mean", "std_mean"), values_and_indices),
    **dict.fromkeys("softmax log_softmax softmin cumsum cumprod normalize glu roll flip".split(), along),  # noqa: SIM905
    "shares": lambda walk, node, name: along_dims(walk, node, node.args[0], -1, name),
    **dict.fromkeys(("channel_shuffle", "local_response_norm"), along),
    **dict.fromkeys(("layer_norm", "rms_norm"), layer_norm),
}
