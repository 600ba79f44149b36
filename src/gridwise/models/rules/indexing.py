"""Indexing by tensors: the indexed dims are whole, the others stay cut."""

from __future__ import annotations

from ...errors import UnsupportedError
from ..placement import Cut, Replicated, resized, with_dims
from .call import Call, NoRule, Placed
from .table import rule


@rule("embedding")
def embedding(call: Call) -> Placed:
    """Rows of a table that is whole on every worker."""
    indices = call.tensors[1]
    if call["sparse"]:
        raise UnsupportedError(
            f"{call.name}: sparse gradients cannot be summed over the workers.\n  fix: sparse=False."
        )
    if call["scale_grad_by_freq"] and call.cut:
        raise NoRule("its gradient counts how often each index occurs in all blocks")
    if indices.layout is None:
        return call.everywhere()
    target = with_dims(indices.layout, (*indices.layout.cuts, (0, call.result.shape[-1])))
    return Placed(Cut(target), call.locally(), [Replicated(), None])


@rule("embedding_renorm_", "embedding_renorm")
def embedding_renorm(call: Call) -> Placed:
    """Refused: rows that occur on some workers only would be scaled on those workers only."""
    raise UnsupportedError(
        f"{call.name}: `max_norm` scales the rows of the table that the indices of each block name.\n  fix: max_norm=None."
    )


@rule("index_select")
def index_select(call: Call) -> Placed:
    return call.along_whole(call.dims("dim", call.tensors[0].dim))


@rule("index")
def index(call: Call) -> Placed:
    """``x[..., i, j, ...]`` with replicated indices for adjacent dims, which are whole."""
    (x, _), indices = call.first_cut(), call["indices"]
    given = [d for d, each in enumerate(indices) if each is not None]
    if any(each is not None and each.dtype.is_floating_point is False and each.dtype.itemsize == 1 for each in indices):
        raise NoRule("indexing by a mask: how many elements it takes depends on their values")
    if given != list(range(given[0], given[-1] + 1)):
        raise NoRule("indices for dims that are not next to one another")
    layout = call.whole(x, given)
    at, count = given[0], len(call.result.shape) - (x.dim - len(given))
    made = [(0, n) for n in call.result.shape[at : at + count]]
    target = with_dims(layout, [*layout.cuts[:at], *made, *layout.cuts[given[-1] + 1 :]])
    return Placed(Cut(target), call.locally(), call.others_whole(layout))


@rule("gather", "take_along_dim")
def gather(call: Call) -> Placed:
    """Elements chosen along a dim, which is whole; the other dims of both tensors are cut alike."""
    x, chosen = call.tensors[:2]
    if call["dim"] is None:
        return call.everywhere()
    largest, _ = call.largest_cut()
    dim = call["dim"] % x.dim
    if any(a != b for d, (a, b) in enumerate(zip(x.shape, chosen.shape, strict=True)) if d != dim):
        raise NoRule("a gather from other rows than those of the indices")
    layout = call.whole(largest, [dim])
    layouts = [resized(layout, [dim], value.shape) for value in (x, chosen)]
    return Placed(Cut(layouts[1]), call.locally(), layouts)


@rule("tril", "triu")
def triangle(call: Call) -> Placed:
    """The part below or above a diagonal: the last two dims are whole."""
    dim = call.tensors[0].dim
    return call.along_whole([dim - 2, dim - 1])
