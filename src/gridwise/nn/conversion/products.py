"""Rules for products of tensors: matmul and its like, einsum, attention, linear, embedding.

Every dim of every tensor has a label, as in einsum. A label may be cut where it is one of the result, and of every tensor
on the grid: then each worker makes its block of the result from its own blocks.

    q (b h l e), k (b h s e)  ->  b h l s          b and h may be cut; l, s and e are whole
    x (b n k), a weight (m k) ->  b n m            b and n may be cut
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import blocks
from .attended import Attended
from .joining import anything, common
from .ranges import watch
from .state import Extent, OnGrid, State, Symbol, Whole
from .walk import Node, Unfit, Walk, given

Labels = list[str]


def combined(
    walk: Walk,
    node: Node,
    name: str,
    operands: Sequence[tuple[Node, Labels]],
    result: Labels,
    broadcasts: bool = True,
) -> State:
    """Let the tensors fit together; where the result lies. If it `broadcasts`, dims with one label may be 1 in some tensors."""
    placed = [(x, labels) for x, labels in operands if isinstance(walk.states[x], OnGrid)]
    whole = {label for x, labels in operands if isinstance(walk.states[x], Whole) for label in labels}
    first = placed[0][1]
    free = [
        label
        for label in first
        if label in result and label not in whole and all(labels.count(label) == 1 for _, labels in placed)
    ]
    if not free and any(_on(walk, x).is_cut(range(_on(walk, x).dim)) for x, _ in placed):
        raise Unfit(f"{name} of tensors without a dim in common that is one of the result")
    moved = [(walk.with_whole(node, x, [d for d, n in enumerate(own) if n not in free]), own) for x, own in placed]
    grids = [_of_labels(state, own, free) for (_, state), own in moved]
    if any(grid != grids[0] for grid in grids):
        moved = [(_along(walk, node, x, own.index(free[0])), own) for (x, _), own in moved]
    (x, state), _ = moved[0]
    for (other, theirs), labels in moved[1:]:
        for label in free:
            mine, its = first.index(label), labels.index(label)
            if state.is_cut([mine]) and state.extents[mine] != theirs.extents[its]:
                walk.must_equal(x, mine, other, its, name)
    sure = [
        label for d, label in enumerate(first) if label in free and state.is_cut([d])
    ]  # equal, or the call is refused
    said: dict[str, list[Extent]] = {}
    for tensor, labels in operands:
        for label, extent in zip(labels, extents_of(walk, tensor), strict=True):
            said.setdefault(label, []).append(extent)
    known = {label: _extent(each, not broadcasts or label in sure) for label, each in said.items()}
    return _result(state, first, result, known)


def _extent(each: list[Extent], equal: bool) -> Extent:
    """That of a label in the result, from what the tensors that have it say."""
    found = each[0] if equal else common(each)
    return Symbol() if found is None else found


def _of_labels(state: OnGrid, labels: Labels, free: Labels) -> Any:
    """Which worker has which place along the labels that may be cut."""
    order = [labels.index(label) for label in free]
    rest = [d for d in range(state.dim) if d not in order]
    P = state.permuted([*order, *rest]).P
    return P.ranks, P.shape[: len(order)]


def _along(walk: Walk, node: Node, x: Node, dim: int) -> tuple[Node, OnGrid]:
    """`x` cut by all workers along one dim."""
    state = _on(walk, x)
    P = walk.P_x.create_cartesian_topology_partition([walk.P_x.size if d == dim else 1 for d in range(state.dim)])
    if state.P == P:
        return x, state
    moved = walk.moved(node, x, P)
    walk.replace(node, {x: moved})
    return moved, OnGrid(P, state.extents)


def _result(state: OnGrid, labels: Labels, result: Labels, known: dict[str, Extent]) -> OnGrid:
    """A tensor with other labels, of which those that are cut are in the same places."""
    for d in reversed(range(state.dim)):
        if labels[d] not in result:
            state = state.reshaped(d, d + 1, [])
    own = [label for label in labels if label in result]
    kept = [label for label in result if label in own]
    state = state.permuted([own.index(label) for label in kept])
    for d, label in enumerate(result):
        if label not in kept:
            state = state.reshaped(d, d, [Symbol()])
    return state.with_extents({d: known[label] for d, label in enumerate(result) if label in known})


def matmul(walk: Walk, node: Node, name: str) -> State:
    """matmul, bmm, mm and mv; leading dims broadcast."""
    a, b = given(node, 0, "input"), given(node, 1, "other", given(node, 1, "mat2", given(node, 1, "vec")))
    one, two = extents_of(walk, a), extents_of(walk, b)
    first = ["m", "k"] if len(one) > 1 else ["k"]
    second = ["k", "n"] if len(two) > 1 else ["k"]
    labels = [_leading(one[: -len(first)]) + first, _leading(two[: -len(second)]) + second]
    lead = [f"lead {i}" for i in range(max(len(one) - len(first), len(two) - len(second)), 0, -1)]
    result = lead + [label for label in ("m", "n") if label in (*first, *second)]
    return combined(walk, node, name, list(zip((a, b), labels, strict=True)), result, broadcasts=name != "bmm")


def _leading(extents: Sequence[Extent]) -> Labels:
    """Labels of dims that broadcast: of those known to be 1, ones that nothing else has, so that they are whole."""
    return [f"{'one' if n == 1 else 'lead'} {len(extents) - i}" for i, n in enumerate(extents)]


def attention(walk: Walk, node: Node, name: str) -> State:
    """`F.scaled_dot_product_attention`."""
    q, k, v, mask = (given(node, i, key) for i, key in enumerate(("query", "key", "value", "attn_mask")))
    in_training, in_evaluation = node.meta["dropout_p"]
    if in_evaluation not in (0, in_training):
        return walk.problem(node, f"{name} with another dropout in evaluation", anything(walk, node))
    if given(node, 7, "enable_gqa", False):
        return walk.problem(node, f"{name} with enable_gqa", anything(walk, node))
    queries = "one l" if given(node, 5, "is_causal", False) else "l"  # whole: a block does not know where it stands
    ends = [(q, [queries, "e"]), (k, ["s", "e"]), (v, ["s", "f"])]
    operands = [(x, _leading(extents_of(walk, x)[:-2]) + own) for x, own in ends]
    if isinstance(mask, torch.fx.Node):
        own = extents_of(walk, mask)
        last = [label if n != 1 else "one" for n, label in zip(own[-2:], ("l", "s"), strict=True)]
        operands.append((mask, _leading(own[:-2]) + last))
    rank = max(len(labels) for _, labels in operands)
    result = [f"lead {i}" for i in range(rank - 2, 0, -1)] + ["l", "f"]
    state = combined(walk, node, name, operands, result)
    if in_training:
        assert isinstance(state, OnGrid)
        P, owner, module = state.P, walk.owner(node), f"_attended_{node.name}"
        walk.modules[module] = (P, lambda: Attended(P, in_training, not in_evaluation, owner))
        node.op, node.target = "call_module", module
    return state


def einsum(walk: Walk, node: Node, name: str) -> State:
    equation, *operands = node.args
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = list(operands[0])
    if not isinstance(equation, str) or "." in equation:
        return walk.problem(node, "einsum with an ellipsis, or without an equation in letters", anything(walk, node))
    left, arrow, right = equation.replace(" ", "").partition("->")
    labels = [list(part) for part in left.split(",")]
    letters = left.replace(",", "")
    result = list(right) if arrow else sorted(letter for letter in set(letters) if letters.count(letter) == 1)
    if len(labels) != len(operands) or any(
        len(extents_of(walk, x)) != len(own) for x, own in zip(operands, labels, strict=False)
    ):
        return walk.problem(node, f"einsum of other tensors than {equation!r} says", anything(walk, node))
    for i, x in enumerate(operands):
        if x in operands[:i]:  # each use has a node of its own: they may be moved apart
            operands[i] = walk.call(node, blocks.same, (x,), walk.states[x])
    node.args = (equation, *operands)
    return combined(walk, node, name, list(zip(operands, labels, strict=True)), result)


def affine(walk: Walk, node: Node, name: str) -> State:
    """`F.linear` with parameters of the model: the last dim whole."""
    x, weight = given(node, 0, "input"), given(node, 1, "weight")
    state, like = walk.states[x], walk.states.get(weight)
    if not isinstance(state, OnGrid) or not isinstance(like, Whole) or len(like.extents) != 2:
        return walk.problem(node, f"{name} whose weight is no parameter of the model", anything(walk, node))
    _, state = walk.with_whole(node, x, [state.dim - 1])
    return state.with_extents({state.dim - 1: like.extents[0]})


def embedding(walk: Walk, node: Node, name: str) -> State:
    """`F.embedding` with a parameter of the model: the indices may be cut in any way."""
    x, weight = given(node, 0, "input"), given(node, 1, "weight")
    state, like = walk.states[x], walk.states.get(weight)
    if not isinstance(like, Whole) or len(like.extents) != 2:
        return walk.problem(node, f"{name} whose weight is no parameter of the model", anything(walk, node))
    for place, key in ((3, "max_norm"), (5, "scale_grad_by_freq"), (6, "sparse")):
        if given(node, place, key):
            return walk.problem(node, f"{name} with {key}", anything(walk, node))
    if isinstance(state, Whole):
        return Whole((*state.extents, like.extents[1]))
    assert isinstance(state, OnGrid)
    if isinstance(rows := like.extents[0], int):
        watch(walk, node, x, rows)
    return state.reshaped(state.dim, state.dim, [like.extents[1]])


def extents_of(walk: Walk, x: Any) -> tuple[Extent, ...]:
    state = walk.states.get(x) if isinstance(x, torch.fx.Node) else None
    if not isinstance(state, OnGrid | Whole):
        raise Unfit("a product with what is no tensor")
    return state.extents


def _on(walk: Walk, x: Node) -> OnGrid:
    state = walk.states[x]
    assert isinstance(state, OnGrid)
    return state


RULES: dict[str, Any] = {
    **dict.fromkeys(("matmul", "bmm", "mm", "mv"), matmul),
    "scaled_dot_product_attention": attention,
    "einsum": einsum,
    "linear": affine,
    "embedding": embedding,
}
