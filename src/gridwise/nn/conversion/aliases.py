"""Changes in place that would be seen through a view in the sequential model, and might not be on a grid.

    z = y.view(...)      may be a view of y here too, or a copy that was moved
    y.mul_(2)            is z changed?

Such a pair is named rather than guessed at. A change that nobody looks at through the other name is no problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph

from . import indexing, reshaping
from .trace import code_of
from .walk import given, is_inplace, name_of

SOMETIMES = (
    *("contiguous", "detach", "to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "bool"),
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"),
)
"""What returns its argument itself where nothing has to be done."""
VIEWS = frozenset([*reshaping.RULES, *indexing.RULES, "expand", "expand_as", *SOMETIMES])
ATTRIBUTES = ("T", "mT", "data")
SAME = (torch.nn.Flatten, torch.nn.Unflatten, torch.nn.Identity, torch.nn.modules.dropout._DropoutNd)


def changed_through_views(graph: Graph, model: torch.nn.Module) -> list[str]:
    """What each change in place of a viewed tensor, or of a view, should be told."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    base: dict[Any, Any] = {}
    for node in graph.nodes:
        first = _source(node)
        if isinstance(first, torch.fx.Node) and (_is_view(node, model) or changes(node, model)):
            base[node] = base.get(first, first)
    problems = []
    for node in graph.nodes:
        if not changes(node, model):
            continue
        root = base.get(node, node)
        views = [other for other in base if base[other] is root and _is_view(other, model)]
        seen = [other for other in (root, *views) if any(order[user] > order[node] for user in other.users)]
        through = [view for view in views if order[view] < order[node]]
        names = {_name(view, base, model) for view in seen if view is root or view in through}
        if through and names - {_name(_source(node), base, model)}:
            code = code_of(node)
            problems.append(f"{name_of(node.target)} changes a tensor through a view{f':  {code}' if code else ''}")
    return problems


def changes(node: Any, model: torch.nn.Module) -> bool:
    """Whether a node changes its first argument."""
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(node.target), "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    return is_inplace(node, name_of(node.target))


def _is_view(node: Any, model: torch.nn.Module) -> bool:
    if node.op == "call_module":
        return isinstance(model.get_submodule(node.target), SAME)
    if node.op not in ("call_function", "call_method"):
        return False
    if node.target is getattr:
        return node.args[1] in ATTRIBUTES
    name = name_of(node.target)
    if name == "einsum":  # of one tensor: its dims in another order
        return len(_operands(node)) == 1
    return name in VIEWS


def _source(node: Any) -> Any:
    """The tensor that a node is a view of, or changes, if it is one or does."""
    if name_of(node.target) == "einsum":
        return next(iter(_operands(node)), None)
    return given(node, 0, "input")


def _operands(node: Any) -> Sequence[Any]:
    """The tensors of an einsum, given one by one or as a list."""
    listed = node.args[1:]
    return listed[0] if len(listed) == 1 and isinstance(listed[0], tuple | list) else listed


def _name(node: Any, base: dict[Any, Any], model: torch.nn.Module) -> Any:
    """The view that a node stands for: changes in place return what they were given."""
    while changes(node, model) and isinstance(_source(node), torch.fx.Node):
        node = _source(node)
    return node
