"""Indexing by tensors: dims into which indices point are whole, all other dims follow the box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..grid import Box
from ..torch_internals.operators import overload_of
from .call import OperatorCall, TensorSpec
from .labels import Labels, by_labels, kept, numbered
from .on_boxes import Builder, Composed, Local
from .pointwise import aligned
from .slicing import with_interval
from .table import NotOnBoxes, operator

aten = torch.ops.aten


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def labels_of_indexed(call: OperatorCall) -> tuple[list[str], list[Labels], list[str], list[int]]:
    """The labels of a tensor, of its indices and of what they select, and the dims that have indices."""
    x, indices = call.tensors[0], call["indices"]
    dims = [d for d, each in enumerate(indices) if each is not None]
    if any(map(_is_mask, indices)):
        raise NotOnBoxes("indexing by a mask: how many elements it takes depends on their values")
    count = max((indices[d].dim for d in dims), default=0)
    labels, made = numbered("d", x.dim), numbered("i", count)
    of_indices = [aligned(made, indices[d].dim) for d in dims]
    if dims == list(range(dims[0], dims[-1] + 1)):
        selected = [*labels[: dims[0]], *made, *labels[dims[-1] + 1 :]]
    else:
        selected = [*made, *(label for d, label in enumerate(labels) if d not in dims)]
    return labels, of_indices, selected, dims


@operator("index", "_unsafe_index")
def index(call: OperatorCall) -> Local:
    """``x[..., i, j, ...]``"""
    labels, of_indices, selected, _ = labels_of_indexed(call)
    return by_labels(call, [labels, *of_indices], selected)


@operator("index_put", "_unsafe_index_put")
def index_put(call: OperatorCall) -> Local:
    """A tensor in which indexed elements are replaced, or added to."""
    given = [(d, each) for d, each in enumerate(call["indices"]) if each is not None]
    if len(given) == 1 and _is_mask(given[0][1]):
        return _masked(call, *given[0])
    labels, of_indices, selected, dims = labels_of_indexed(call)
    of_values = aligned(selected, call["values"].dim)
    return by_labels(call, [labels, *of_indices, of_values], labels, None, [labels[d] for d in dims])


def _masked(call: OperatorCall, at: int, mask: TensorSpec) -> Local:
    """Elements replaced where a mask of the dims from `at` on is true: by the same everywhere, or by one row after another."""
    x, values, adds = call.tensors[0], call["values"], call["accumulate"]
    labels, stop = numbered("d", x.dim), at + mask.dim
    own, rest = labels[at:stop], labels[stop:]
    if values.volume != 1 and values.dim > len(rest):
        return by_labels(call, [labels, own, aligned([*labels[:at], "n", *rest], values.dim)], labels, None, own)

    def replaced(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        mask = mask.bool().reshape(*mask.shape, *(1,) * len(rest))
        values = values.reshape(()) if values.numel() == 1 else values
        return torch.where(mask, x + values if adds else values.to(x.dtype), x)

    return by_labels(call, [labels, own, aligned(labels, values.dim) if values.volume != 1 else []], labels, replaced)


@operator("index_select")
def index_select(call: OperatorCall) -> Local:
    labels = numbered("d", call.tensors[0].dim)
    result = list(labels)
    if labels:
        result[call["dim"] % len(labels)] = "i"
    return by_labels(call, [labels, ["i"][: call.tensors[1].dim]], result)


@operator("index_add", "index_copy", "index_fill", "index_reduce")
def index_add(call: OperatorCall) -> Local:
    """Rows added to others, or put in their place."""
    x = call.tensors[0]
    if not x.dim:
        raise NotOnBoxes("rows of a number")
    labels, dim = numbered("d", x.dim), call["dim"] % x.dim
    source = [*labels[:dim], "i", *labels[dim + 1 :]] if call.kind != "index_fill" else []
    operands = [labels, ["i"][: call["index"].dim], source][: len(call.tensors)]
    return by_labels(call, operands, labels, None, [labels[dim]])


@operator("gather")
def gather(call: OperatorCall) -> Local:
    """Elements chosen along a dim; in the others, those at the index of the element itself."""
    x, chosen = call.tensors
    if not x.dim or call["sparse_grad"]:
        raise NotOnBoxes("a number, or a gradient that is sparse")
    if x.dim != chosen.dim:
        raise NotOnBoxes("an empty index, which may have any number of dims")
    dim, run = call["dim"] % x.dim, call.locally()
    everything = 0, x.shape[dim]
    return Local(lambda box: [with_interval(box, dim, everything), box], lambda box, x, chosen: run(x, chosen))


@operator("take")
def take(call: OperatorCall) -> Local:
    """Elements by their index among all elements."""
    x, chosen = call.tensors
    labels = numbered("d", chosen.dim)
    return by_labels(call, [numbered("k", x.dim), labels], labels)


@operator("take_along_dim")
def take_along_dim(call: OperatorCall) -> Local | Composed:
    """The same, of tensors that broadcast; without a dim, of all elements in one line."""
    dims = call.result.dim
    if call["dim"] is None:

        def build(builder: Builder, x: Any, chosen: Any) -> Any:
            lines = [builder.call(aten.reshape.default, each, [-1]) for each in (x, chosen)]
            return builder.call(call.op, *lines, 0)

        return Composed(build)
    labels, dim = numbered("d", dims), call["dim"] % dims
    return by_labels(call, [[*labels[:dim], "k", *labels[dim + 1 :]], labels], labels)


@operator("scatter", "scatter_add", "scatter_reduce")
def scatter(call: OperatorCall) -> Local:
    """Elements put or added at places along a dim; in the other dims, at their own index."""
    x, chosen = call["self"], call["index"]
    if not x.dim or not chosen.dim:
        raise NotOnBoxes("places in a number")
    dim, run, count = call["dim"] % x.dim, call.locally(), len(call.tensors)
    extents = [n if d != dim else 0 for d, n in enumerate(chosen.shape)]

    def needs(box: Box) -> Sequence[Box]:
        start = tuple(min(a, n) for a, n in zip(box.start, extents, strict=True))
        stop = tuple(min(b, n) for b, n in zip(box.stop, extents, strict=True))
        moved = with_interval(Box(start, stop), dim, (0, chosen.shape[dim]))
        return [with_interval(box, dim, (0, x.shape[dim])), *[moved] * (count - 1)]

    return Local(needs, lambda box, *tensors: kept(run(*tensors), box, [dim]))


@operator("embedding")
def embedding(call: OperatorCall) -> Local:
    """Rows of a table that is whole."""
    if call["sparse"] or call["scale_grad_by_freq"]:
        raise NotOnBoxes("an embedding whose gradient is sparse, or counts how often each index occurs")
    labels = numbered("d", call.tensors[1].dim)
    return by_labels(call, [["k", "e"], labels], [*labels, "e"])


@operator("bucketize", "isin", "searchsorted")
def bucketize(call: OperatorCall) -> Local:
    """Each element's place in a sorted line, or whether it is in a list."""
    local = call.locally()

    def run(*tensors: Tensor) -> Any:
        return local(*(x.contiguous() for x in tensors))  # a warning of torch's else

    if call.kind == "searchsorted":
        sequence, lead = call.tensors[0], numbered("b", call.result.dim - 1)
        of_sequence = [*lead, "k"] if sequence.dim > 1 else ["k"]
        queries = [*lead, "q"][: call.result.dim]
        if not isinstance(call["self"], type(sequence)):
            raise NotOnBoxes("the place of one number")
        return by_labels(call, [of_sequence, queries, of_sequence], queries, run)
    labels = numbered("d", call.result.dim)
    if call.tensors[0].shape != call.result.shape or overload_of(call.op).startswith("Scalar"):
        raise NotOnBoxes("the place of one number")
    return by_labels(call, [labels], labels, run)
