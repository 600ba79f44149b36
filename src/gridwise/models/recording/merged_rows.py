"""Keep leading dims apart that a model merges only for a `linear`, and splits again after it.

    reshape (l, b, h, e) to (l b, k);  linear;  view (l b, m) as (l, b, m)

is what torch's multi-head attention does. Blocks of b are not blocks of l b, so both views would move tensors. `linear`
takes any number of leading dims, so the merge is unnecessary.
"""

from __future__ import annotations

from math import prod

import torch
from torch.fx import Graph, Node

from .recording import memory_of, written_by

aten = torch.ops.aten
VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints)


def keep_rows_apart(graph: Graph) -> None:
    """Move views that merge leading dims from before a `linear` to after it, and join consecutive views."""
    written = {memory_of(each) for node in graph.nodes for each in written_by(node)}
    for node in [node for node in graph.nodes if node.target is aten.linear.default]:
        view = node.args[0]
        if view.target in VIEWS and not written & {memory_of(view), memory_of(node)}:
            _exchange(graph, node, view)


def _exchange(graph: Graph, node: Node, view: Node) -> None:
    source, rows = view.args[0], leading(view.args[0].meta["val"].shape, view.meta["val"].shape)  # type: ignore[union-attr]
    if rows is None:
        return
    merged, result = view.meta["val"], node.meta["val"]
    with graph.inserting_before(view):
        apart = graph.call_function(aten.reshape.default, (source, [*rows, merged.shape[-1]]))
    with graph.inserting_after(node):
        after = graph.call_function(aten.reshape.default, (node, list(result.shape)))
    apart.meta, after.meta = dict(view.meta), dict(node.meta)
    node.replace_all_uses_with(after, delete_user_cb=lambda user: user is not after)
    node.update_arg(0, apart)
    for each, value in ((apart, merged), (node, result)):
        each.meta["val"] = value.new_empty((*rows, value.shape[-1]))
    for user in list(after.users):
        if user.target in VIEWS and user.args[0] is after:
            user.update_arg(0, node)
            if user.target is aten.flatten.using_ints:
                user.target, user.args = aten.reshape.default, (node, list(user.meta["val"].shape))
    for each in (after, view):
        if not each.users:
            graph.erase_node(each)
            each.meta.clear()


def leading(shape: torch.Size, merged: torch.Size) -> list[int] | None:
    """The leading extents of ``shape`` that a view merges into the first of two dims; None if it merges none."""
    if len(merged) != 2 or not prod(shape):
        return None
    rows, left = list[int](), merged[0]
    for n in shape:
        if left == 1:
            break
        if left % n and n % left:
            return None
        rows.append(min(n, left))
        left //= rows[-1]
    return rows if left == 1 and len(rows) > 1 else None
