"""Views that change a tensor's own shape, and views of its memory, as plain views and indexing.

    y.transpose_(0, 1), y.resize_(24)    the operator out of place: what follows refers to its result
    as_strided of windows of rows        unfold, which runs on blocks; `torch.stft` makes such windows
    any other as_strided                 indices of the elements of the whole, in the order of memory

On blocks there is no such memory, so a shape that a caller would see changed, a given tensor that takes other memory
(`set_`), and a memory view that is written to, are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from ...errors import UnsupportedError
from ...torch_internals.operators import OpOverload
from .recording import memory_of, where, written_by
from .tracing import Fakes

aten = torch.ops.aten
OUT_OF_PLACE = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.swapaxes_.default: aten.swapaxes.default,
    aten.swapdims_.default: aten.swapdims.default,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.as_strided_.default: aten.as_strided.default,
    aten.resize_.default: aten.as_strided.default,
    aten.resize_as_.default: aten.as_strided.default,
}


def without_memory_views(module: torch.fx.GraphModule, fakes: Fakes) -> None:
    """Replace these operators in a graph; raises `UnsupportedError` where they cannot be replaced."""
    for node in module.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target.overloadpacket is aten.set_:
            _refuse_if_given(node, "it gives other memory to a tensor that was given.\n  fix: a tensor of its own.")
    for node in [node for node in module.graph.nodes if node.target in OUT_OF_PLACE]:
        name = str(node.target).removeprefix("aten.").partition(".")[0].removesuffix("_")
        _refuse_if_given(node, f"it changes the shape of a tensor that was given.\n  fix: y = x.{name}(...).")
        node.target = OUT_OF_PLACE[node.target]
        if node.target is aten.as_strided.default:
            node.args, node.kwargs = (node.args[0], *_memory(node)), {}
    views = [node for node in module.graph.nodes if node.target is aten.as_strided.default]
    if views:
        written = {memory_of(each) for node in module.graph.nodes for each in written_by(node)}
        for node in views:
            if memory_of(node) in written:
                raise UnsupportedError(f"{where(node)}: a view of memory that is written to.\n  fix: clone it first.")
            if not _as_windows(module.graph, node, fakes):
                _as_indices(module, node, fakes)
        module.recompile()


def _memory(node: Node) -> tuple[list[int], list[int], int]:
    view: Tensor = node.meta["val"]
    return list(view.shape), list(view.stride()), int(view.storage_offset())


def _refuse_if_given(node: Node, why: str) -> None:
    """Raise if the tensor that a node changes is one that the caller, or the model, holds."""
    tensor = node.args[0]
    while (
        isinstance(tensor, Node)
        and isinstance(tensor.target, OpOverload)
        and tensor.args
        and written_by(tensor) == [tensor.args[0]]
    ):
        tensor = tensor.args[0]  # changed in place: the same tensor
    if isinstance(tensor, Node) and tensor.op in ("placeholder", "get_attr"):
        raise UnsupportedError(f"{where(node)}: {why}")


def _call(graph: Graph, before: Node, fakes: Fakes, target: OpOverload, *args: Any) -> Node:
    """A node before another, with what that notes of its origin."""
    with graph.inserting_before(before):
        made = graph.call_function(target, args)
    made.meta = dict(before.meta)
    with fakes.mode:
        made.meta["val"] = target(*[each.meta["val"] if isinstance(each, Node) else each for each in args])
    return made


def _as_windows(graph: Graph, node: Node, fakes: Fakes) -> bool:
    """Make a view of windows of the last dim an `unfold`; whether it is one."""
    x = node.args[0]
    assert isinstance(x, Node)
    value, (size, stride, offset) = x.meta["val"], _memory(node)
    last = value.dim() - 1
    if (
        len(size) != last + 2
        or last < 0
        or offset != value.storage_offset()
        or not all(size)
        or value.stride(last) != 1
    ):
        return False
    *rows, count, length = size
    step = stride[-2]
    fits = step > 0 and stride[-1] == 1 and (count - 1) * step + length <= value.shape[last]
    if not fits or rows != list(value.shape[:last]) or stride[:-2] != list(value.stride()[:last]):
        return False
    windows = _call(graph, node, fakes, aten.unfold.default, x, last, length, step)
    node.target, node.args = aten.slice.Tensor, (windows, last, 0, count)
    return True


def _as_indices(module: torch.fx.GraphModule, node: Node, fakes: Fakes) -> None:
    """Make a view of memory the indexing of the dense tensor that has this memory."""
    graph, memory = module.graph, memory_of(node)
    base = next(each for each in graph.nodes if memory_of(each) == memory)
    value: Tensor = base.meta["val"]
    steps = value.stride()
    order = sorted(range(value.dim()), key=lambda d: -steps[d])
    turned = value.permute(order)
    if not turned.is_contiguous() or value.storage_offset() or value.untyped_storage().nbytes() != value.nbytes:
        raise UnsupportedError(
            f"{where(node)}: a view of memory that no tensor has whole.\n  fix: reshape, unfold or index."
        )
    size, stride, offset = _memory(node)
    if value.dtype != node.meta["val"].dtype or _last(size, stride, offset) >= value.numel():
        raise UnsupportedError(
            f"{where(node)}: memory that has no numbers yet.\n  fix: torch.cat with what comes there."
        )
    flat = _call(graph, node, fakes, aten.permute.default, base, order)
    flat = _call(graph, node, fakes, aten.reshape.default, flat, [value.numel()])
    name = f"_memory_indices_of_{node.name}"
    module.register_buffer(name, _indices(size, stride, offset))
    with graph.inserting_before(node):
        indices = graph.get_attr(name)
    indices.meta = {**node.meta, "val": fakes.mode.from_tensor(getattr(module, name))}
    node.target, node.args = aten.index.Tensor, (flat, [indices])


def _last(size: Sequence[int], stride: Sequence[int], offset: int) -> int:
    return offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if all(size) else -1


def _indices(size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    found = torch.full((1,) * len(size), offset)
    for d, (n, step) in enumerate(zip(size, stride, strict=True)):
        found = found + (torch.arange(n) * step).view([-1 if e == d else 1 for e in range(len(size))])
    return found.expand(tuple(size)).clone()
